"""Who is let in to an etcd with users, and to one that asks for certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from elastic_launch.errors import UsageError
from elastic_launch.rendezvous.stores.etcd.address import EtcdAddress
from elastic_launch.rendezvous.stores.etcd.api import grpc, rpc
from elastic_launch.rendezvous.stores.etcd.store import EtcdStore
from elastic_launch.rendezvous.stores.store import StoreUnavailable

from .etcds import Etcd, running_etcd
from .test_store_watch import shown, shown_in_the_end, watching

TOKEN_SECONDS = 1


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


@pytest.fixture(scope="module")
def guarded() -> Iterator[Etcd]:
    """Has the users root and me; me may use /mine/."""

    async def guard(endpoint: str) -> None:
        async with grpc.aio.insecure_channel(endpoint) as channel:
            auth = rpc.AuthStub(channel)
            for name in ("root", "me"):
                await auth.UserAdd(rpc.AuthUserAddRequest(name=name, password=f"of {name}"))
                await auth.RoleAdd(rpc.AuthRoleAddRequest(name=name))
                await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=name, role=name))
            mine = rpc.Permission(permType=rpc.Permission.READWRITE, key=b"/mine/", range_end=b"/mine0")
            await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="me", perm=mine))
            await auth.AuthEnable(rpc.AuthEnableRequest())

    with running_etcd("3.4", arguments=["--auth-token-ttl", str(TOKEN_SECONDS), "--bcrypt-cost", "4"]) as etcd:
        asyncio.run(guard(etcd.endpoint))
        yield etcd
        etcd.mend()


@pytest.fixture
def mine(guarded: Etcd) -> EtcdAddress:
    return replace(guarded.address, user="me", password="of me", prefix="/mine/")


def test_a_user_works_on_beyond_the_end_of_its_token(mine: EtcdAddress) -> None:
    async def scenario() -> None:
        writer, *others = stores = [EtcdStore(mine) for _ in range(6)]  # each has a token of its own
        reader, renewer, deleter, granter, watcher = others
        version = await writer.compare_and_set("a", b"one", 0)
        gone = await deleter.compare_and_set("b", b"", 0)
        assert version and gone
        lease = await renewer.grant(60)
        await asyncio.gather(*(store.get("a") for store in others))
        async with watching(reader, "") as watch:
            assert await shown(watch) == {"a": b"one", "b": b""}
            for _ in range(2):
                await asyncio.sleep(2.2 * TOKEN_SECONDS)
                async with watching(watcher, "") as late:
                    assert list(await shown(late)) == ["a", "b"]
                version, held, renewed, _ = await asyncio.gather(
                    writer.compare_and_set("a", b"two", version),
                    reader.get("a"),
                    renewer.renew(lease),
                    granter.grant(5),
                )
                assert version and held and renewed
            await asyncio.sleep(2.2 * TOKEN_SECONDS)
            assert await deleter.delete("b", gone)
            await shown_in_the_end(watch, {"a": b"two"})
        assert await deleter.delete("a", version)
        for store in stores:
            await store.close()

    run(scenario())


def test_a_restarted_etcd_that_has_forgotten_all_tokens_gives_another(guarded: Etcd, mine: EtcdAddress) -> None:
    async def scenario() -> None:
        store, other = EtcdStore(mine), EtcdStore(mine)
        async with watching(store, "") as watch:
            assert await shown(watch) == {}
            guarded.kill()
            guarded.start(wait=False)
            await asyncio.to_thread(guarded.wait_until_ready)
            version = await other.compare_and_set("a", b"one", 0)
            assert version
            assert await shown(watch) == {"a": b"one"}
            await asyncio.gather(*(store.get("a") for _ in range(10)))
            assert await store.delete("a", version)
        await store.close()
        await other.close()

    run(scenario())


def test_who_is_not_let_in_is_told_why(guarded: Etcd, mine: EtcdAddress) -> None:
    async def refused(address: EtcdAddress, why: str) -> None:
        store = EtcdStore(address)
        with pytest.raises(UsageError, match=why):
            await store.get("a")
        with pytest.raises(UsageError, match=why):
            await store.compare_and_set("a", b"", 0)
        with pytest.raises(UsageError, match=why):
            async with watching(store, "") as watch:
                await shown(watch)
        await store.close()

    async def scenario() -> None:
        await refused(replace(mine, password="of you"), "authentication failed, invalid user ID or password")
        await refused(replace(mine, prefix="/theirs/"), "permission denied")
        await refused(replace(mine, user="", password=""), "wants a user and a password: etcd://USER@HOST:PORT")

    run(scenario())


def test_an_etcd_without_users_lets_everybody_in(etcd_of_version: Any) -> None:
    async def scenario() -> None:
        store = EtcdStore(replace(etcd_of_version("3.4").address, user="me", password="x", prefix="/anybody/"))
        assert await store.get("a") is None
        await store.close()

    run(scenario())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca.pem has signed both (server, client).pem; stranger.pem is another authority's own."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "stranger.pem")
    for name, host in (("server", "127.0.0.1"), ("client", "client.example.org")):
        issued = authority.issue_cert(host)
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        for pem in issued.cert_chain_pems:
            pem.write_to_path(folder / f"{name}.pem", append=True)
    return folder


@pytest.fixture(scope="module")
def behind_tls(certificates: Path) -> Iterator[EtcdAddress]:
    files = {"--cert-file": "server.pem", "--key-file": "server.key", "--trusted-ca-file": "ca.pem"}
    arguments = ["--client-cert-auth"]
    for option, file in files.items():
        arguments += [option, str(certificates / file)]
    with running_etcd("3.4", scheme="https", arguments=arguments) as etcd:
        text = f"etcds://{etcd.endpoint}/tls?ca=ca.pem&cert=client.pem&key=client.key"
        yield EtcdAddress.parse(text.replace("=", f"={certificates}/"))


def test_certificates_are_given_and_checked(behind_tls: EtcdAddress, certificates: Path) -> None:
    async def unavailable(address: EtcdAddress, why: str) -> None:
        store = EtcdStore(address)
        with pytest.raises(StoreUnavailable, match=why):
            await store.get("a")
        await store.close()

    async def scenario() -> None:
        store = EtcdStore(behind_tls)
        async with watching(store, "") as watch:
            assert await shown(watch) == {}
            assert await store.compare_and_set("a", b"one", 0)
            assert await shown(watch) == {"a": b"one"}
        await store.close()
        await asyncio.gather(
            unavailable(replace(behind_tls, ca=str(certificates / "stranger.pem")), "(?i)certificate"),
            unavailable(replace(behind_tls, cert="", key=""), behind_tls.endpoints[0]),
            unavailable(replace(behind_tls, tls=False), behind_tls.endpoints[0]),
        )

    run(scenario())
