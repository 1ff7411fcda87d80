"""Which store an election stands in: etcd where XCE_REF_ETCD names it, else a record in a file of this host."""

from dataclasses import dataclass
from pathlib import Path

from node_manager.reference.clock import read_boot_id
from node_manager.reference.election import Election
from node_manager.reference.etcd import EtcdLease
from node_manager.reference.lease import FileLease, FileStore, LeaseStore
from node_manager.reference.loop import Context, StartError
from node_manager.reference.settings import Settings
from node_manager.reference.slot import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A place in an election, and what it keeps open."""

    election: Election
    slot: Slot

    def close(self) -> None:
        """Give the place free; the lease, if there is one, runs out by itself."""
        self.slot.close()


def stand(context: Context, *, fact: str, file_name: str, holder: str, willing: bool = True) -> Candidate:
    """Stand as `holder` for the lease behind `fact`. Raises StartError, and OSError where its place cannot be kept."""
    settings = context.settings
    path = settings.state_dir / f"{fact}.etcd" if settings.etcd else settings.lease_file(file_name)
    try:
        slot = Slot(path, holder)
    except BlockingIOError:
        raise StartError(
            f"cannot stand as {holder!r}: another process does; give each its own XCE_REF_HOLDER"
        ) from None
    election = Election(
        _store(context, settings, fact, path, holder, slot),
        holder=holder,
        lease_ns=settings.lease_ns,
        renew_ns=settings.renew_ns,
        willing=willing,
        new_term=slot.over,
        remember=slot.remember,
    )
    return Candidate(election=election, slot=slot)


def _store(context: Context, settings: Settings, fact: str, path: Path, holder: str, slot: Slot) -> LeaseStore:
    boot_id = read_boot_id()
    if not settings.etcd:
        return FileStore(FileLease(path, boot_id=boot_id, writer=holder), holder=holder)
    return EtcdLease(
        context.loop,
        settings.etcd,
        name=f"{settings.etcd_prefix}/{fact}",
        holder=holder,
        # Another boot is another holder: its dependants are gone, and so is what it stated.
        identity=f"{slot.identity}/{boot_id}",
        lease_ns=settings.lease_ns,
    )
