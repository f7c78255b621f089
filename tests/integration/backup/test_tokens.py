"""Tokens after a restore: who could log in at the backup can, and nobody else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import goq
from goq.access.admin_token import read_admin_token
from goq.backup.backup import back_up_folder
from goq.backup.place import BackupPlace
from goq.backup.restore import RestoreOrder, restore
from goq.errors import NotAllowed
from goq.storage.disk import RealDisk

SETTINGS = {"security.auth": "tokens"}


def test_tokens_log_in_after_a_restore_and_revoked_and_later_ones_do_not(tmp_path: Path) -> None:
    data, folder, new = tmp_path / "data", tmp_path / "place", tmp_path / "new"
    with goq.Node(data, settings=SETTINGS) as node:
        lost_admin = read_admin_token(data)
        assert lost_admin is not None
        with node.client(token=lost_admin) as admin:
            admin.create_topic("orders", partitions=1)
            shop = admin.create_token("shop", allow=["publish:orders"])
            revoked = admin.create_token("gone", allow=["admin:*"])
            admin.revoke_token(revoked.id)
    back_up_folder(RealDisk(), data, folder, time.time_ns() // 1000)
    with goq.Node(data, settings=SETTINGS) as node, node.client(token=lost_admin) as admin:
        later = admin.create_token("later", allow=["admin:*"])
    restore(BackupPlace(RealDisk(), folder), new, RestoreOrder(), time.time_ns() // 1000)
    assert read_admin_token(new) is None
    with goq.Node(new, settings=SETTINGS) as node:
        with node.client(token=shop.token) as client:
            assert client.whoami().id == shop.id
            client.publish("orders", b"1")
            with pytest.raises(NotAllowed):
                client.delete_topic("orders")
        for token in (lost_admin, revoked.token, later.token):
            with node.client(token=token) as client, pytest.raises(NotAllowed):
                client.whoami()
        own_admin = read_admin_token(new)
        assert own_admin not in (None, lost_admin)
        with node.client(token=own_admin) as client:
            assert {each.name for each in client.list_tokens()} == {"gone", "shop"}
