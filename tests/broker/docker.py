"""A Kafka broker in a container, by the `apache/kafka` image: alone, or as a member of a cluster.

testcontainers' reaper ends whatever a killed test session leaves behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.broker.kafka import (
    SETTINGS,
    START_DEADLINE_S,
    OwnBroker,
    add_proxied_listener,
    free_ports,
    wait_until_it_answers,
)

IMAGE = "apache/kafka:4.1.1"


class DockerBroker(OwnBroker):
    """Broker and controller in one container, on a fixed port of the Docker host.

    Args:
        network: of the other members, where it is known as `alias`; None for a broker that is alone.
        proxy_port: of a proxy on this machine's loopback that stands before it.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        network: Network | None = None,
        alias: str = "",
        proxy_port: int | None = None,
    ) -> None:
        port, proxied = free_ports(2)
        self._container = DockerContainer(IMAGE).with_bind_ports(9092, port)
        host = self._container.get_container_host_ip().replace("localhost", "127.0.0.1")
        super().__init__(f"{host}:{port}", "Docker", ours=True)
        lines = {
            **SETTINGS,
            "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "log.dirs": "/var/lib/kafka/data",
        }
        if network is not None:
            self._container.with_network(network).with_network_aliases(alias)
            # The others do not reach the port of the Docker host: they have a listener of their own.
            lines["listeners"] += ",MEMBERS://:9094"
            lines["advertised.listeners"] += f",MEMBERS://{alias}:9094"
            lines["listener.security.protocol.map"] += ",MEMBERS:PLAINTEXT"
            lines["inter.broker.listener.name"] = "MEMBERS"
        if proxy_port is not None:
            self._container.with_bind_ports(9095, proxied)
            self.behind_proxy = f"{host}:{proxied}"
            lines["listeners"] += ",PROXIED://:9095"
            add_proxied_listener(lines, proxy_port)
        for key, value in {**lines, **settings}.items():
            self._container.with_env("KAFKA_" + key.upper().replace(".", "_"), value)

    def prepare(self) -> None:
        """Nothing: the image formats its own storage."""

    def launch(self) -> None:
        """Starts the container; it may not answer yet."""
        self._container.start()

    def await_answer(self) -> None:
        """Returns once it serves."""
        wait_until_it_answers(self.bootstrap, time.monotonic() + START_DEADLINE_S)

    def stop(self) -> None:
        """Removes the container with its data."""
        self._container.stop()

    def pause(self) -> None:
        """Freezes the container."""
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        """Lets the container go on."""
        self._container.get_wrapped_container().unpause()

    def kill(self) -> None:
        """Kills the container's process; the container and its data stay."""
        self._container.get_wrapped_container().kill()

    def restart(self) -> None:
        """Restarts the container, or starts it after a kill."""
        self._container.get_wrapped_container().restart()
        self.await_answer()
