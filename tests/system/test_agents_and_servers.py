"""Agents and servers come to a sudden end, and several jobs share a machine."""

from __future__ import annotations

import signal

import psutil

from .launching import Lab, wait_until_gone

MANY = ("--max-restarts", "1000")


def test_the_loss_of_one_of_two_agents_leaves_the_other_in_training_and_no_process_behind(lab: Lab) -> None:
    server = lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "4", "--nproc-per-node", "2", *MANY)
    first, second = (lab.launch(*flags, open_ended=True, pause=0.02, num_workers=1) for _ in range(2))
    lab.wait_for_world(4)
    left = second.descendants()
    assert len(left) >= 4, "two workers, each with a process that loads data"
    second.signal(signal.SIGKILL)
    wait_until_gone(left)
    lab.wait_for_world(2)
    third = lab.launch(*flags, open_ended=True, pause=0.02, num_workers=1)
    lab.wait_for_world(4)
    lab.finish()
    assert [first.wait(), third.wait()] == [0, 0]
    lab.assert_exact(members=4)


def test_nothing_is_left_of_an_agent_that_is_killed_with_the_server_inside_it(lab: Lab) -> None:
    agent = lab.launch("--max", "2", open_ended=True, pause=0.02, num_workers=2)
    lab.wait_for_world(2)
    left = agent.descendants()
    assert len(left) >= 6
    port = int(agent.url.rpartition(":")[2])
    agent.signal(signal.SIGKILL)
    wait_until_gone(left)
    listening = {each.laddr.port for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    assert port not in listening


def test_an_intact_ring_goes_on_without_its_server_and_its_agent_can_still_be_ended(lab: Lab) -> None:
    server = lab.serve()
    flags = ("--rendezvous", server.url, "--max", "2", "--nproc-per-node", "2", "--shutdown-timeout", "3")
    agent = lab.launch(*flags, open_ended=True, pause=0.02)
    lab.wait_for_world(2)
    left = agent.descendants()
    server.signal(signal.SIGKILL)
    lab.wait_for_text(agent, "the rendezvous server is lost: the workers go on without it")
    lab.wait_for_steps(50)
    agent.signal(signal.SIGTERM)
    assert agent.wait(20) == 0
    wait_until_gone(left)


def test_two_jobs_share_a_machine_and_a_server(lab: Lab, other_lab: Lab) -> None:
    server = lab.serve()
    agents = []
    for one, name in ((lab, "one"), (other_lab, "two")):
        flags = ("--rendezvous", server.url, "--job", name, "--min", "1", "--max", "2", "--nproc-per-node", "2", *MANY)
        agents.append(one.launch(*flags, open_ended=True, pause=0.02))
    for one in (lab, other_lab):
        one.wait_for_world(2)
    lab.kill_rank(0)
    lab.wait_for_world(1)
    lab.finish()
    other_lab.finish()
    assert [agent.wait() for agent in agents] == [0, 0]
    lab.assert_exact()
    other_lab.assert_exact(members=2)
    other_lab.assert_nothing_redone()


def test_an_agent_that_comes_after_the_end_is_told_so(lab: Lab) -> None:
    server = lab.serve()
    flags = ("--rendezvous", server.url, "--min", "1", "--max", "1", "--nproc-per-node", "1")
    assert lab.launch(*flags, epochs=1).wait() == 0
    late = lab.launch(*flags, epochs=1)
    assert late.wait(30) == 0
    lab.assert_exact(epochs=1, members=1)
