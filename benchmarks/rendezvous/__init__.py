"""What the rendezvous server costs as the agents become many: real connections, no workers behind them."""
