"""The connections to Google's services, made when first needed."""

from __future__ import annotations

from typing import Any

from replicator_target_bigquery.calls.clients import bigquery_client, storage_client
from replicator_target_bigquery.calls.governor import Governor
from replicator_target_bigquery.calls.jobs import Jobs
from replicator_target_bigquery.commits import Commits
from replicator_target_bigquery.config import BigQueryConfig
from replicator_target_bigquery.incarnations import Incarnations
from replicator_target_bigquery.names import Names
from replicator_target_bigquery.staging import CloudStore, FolderStore, StagingStore
from replicator_target_bigquery.tables import TableClient


class Services:
    """Tables, jobs, commits and the staging bucket, over two clients."""

    def __init__(self, config: BigQueryConfig, names: Names, governor: Governor, replicator: str) -> None:
        self._clients: list[Any] = [bigquery_client(config)]
        self.tables = TableClient(self._clients[0], config, names)
        self.jobs = Jobs(
            self._clients[0],
            location=config.location,
            labels={**config.labels, "replicator": replicator},
            timeout_s=config.job_timeout.total_seconds(),
        )
        self.commits = Commits(self.jobs, config, names, governor)
        self.incarnations = Incarnations(config=config, names=names, tables=self.tables, commits=self.commits)
        self.store: StagingStore
        if config.staging.folder is not None:
            self.store = FolderStore(config.staging.folder, config.staging.bucket, config.location)
        else:
            self._clients.append(storage_client(config))
            self.store = CloudStore(self._clients[1], config.staging.bucket)

    def close(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            client.close()
