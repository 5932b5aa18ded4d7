//! The archive: its label, snapshot and operations log, and the locks by which processes share it.
//!
//! Files: `label`; `snapshot-N` and `log-N`, of the label's number and the one before; `segment-N`;
//! `index-N`; `counts-N`; `reserve`; `vouched`; and the locks `lock-writer`, `lock-gc`,
//! `lock-importer`, `lock-commit`, `epoch-0`, `epoch-1`.
//!
//! *Crash argument:* one append is one frame. A process that gets the commit lock reads to the end
//! first. The last frame may be of a process that was killed before its sync. A writer writes and
//! syncs that frame again before its records are shown, unless the file `vouched` names it, which
//! is written after the sync. A reader writes nothing: it has the log synced, and on several nodes
//! trusts only frames that as many copies have as a change needs. A bad frame is the torn end of
//! the log; if a later frame follows it, it is damage.
//!
//! *Locks that do not hold*, as some file servers' do, are noticed where they cost something: an
//! append finds nothing behind the end that it read, and reads its own frame back before it is
//! acknowledged.
//!
//! | module | what |
//! |---|---|
//! | [`archive`] | the archive, opened: what all of its users share |
//! | [`key_area`], [`key_changes`] | the keys of a sealed archive, and how they change |
//! | [`domain`], [`domains`], [`domain_changes`] | a domain, which ones there are, and how they are made and erased |
//! | [`data_keys`] | data keys that take the place of older ones, and go when nothing is under them |
//! | [`label`] | the label made durable, and the record of what is synced |
//! | [`frames`] | frames replayed over tables |
//! | [`snapshot`] | snapshots, written and read |
//! | [`position`] | how far a process has followed the log |
//! | [`commit`] | changes appended, those of others replayed |
//! | [`next_log`] | a snapshot made, and a new log begun |
//! | [`reserve`] | bytes that are given up on a full disk |
//! | [`checkpoint`] | a new log begun beside clients, in portions |
//! | [`leaf_check`] | the copies of the tables' leaves looked at |
//! | [`upgrade`] | an archive of an older program gets newer kinds of tables |
//! | [`roles`], [`signatures`] | keys with roles; who signed a frame, and what that counts for |
//! | [`heads`] | what shows that the archive goes on from where it was seen earlier |
//! | [`epochs`] | what readers keep from being freed |

mod archive;
#[cfg(feature = "planted-bugs")]
mod broken;
mod checkpoint;
mod commit;
mod data_keys;
mod domain;
mod domain_changes;
mod domains;
mod epochs;
mod frames;
mod heads;
#[cfg(feature = "planted-bugs")]
mod hostile;
mod key_area;
mod key_changes;
mod label;
mod leaf_check;
mod next_log;
mod position;
mod proofs;
mod reserve;
mod roles;
mod signatures;
mod snapshot;
mod upgrade;

#[cfg(feature = "planted-bugs")]
pub use self::hostile::{append_records, write_other_tables};
pub use self::{
    archive::{Archive, create_sealed},
    data_keys::{DataKeyListed, allow_data_keys, data_keys, rotate_data_key},
    domain::Domain,
    domain_changes::{allow_domains, create_domain, erase_domain},
    domains::{DomainListed, domain_called, domains, is_erased},
    epochs::EpochGuard,
    heads::of as head_of,
    key_area::key_area,
    key_changes::{change_keys, erase_keys},
    leaf_check::{mend_leaves, renew_log, renew_snapshot},
    reserve::Reserve,
    roles::{add_put_key, read_key, remove_put_key},
    upgrade::{features_to_come, upgrade, upgrade_telling},
};
pub(crate) use self::{
    archive::{end_erasures, memory_of, memory_of_filters},
    checkpoint::{Checkpointed, checkpoint_some, log_bytes_at_once},
    data_keys::erase_older_data_key,
    domains::{domain_of, is_there, look_for_data_key},
    epochs::await_earlier_epoch,
    key_changes::not_erased,
    leaf_check::look_at_leaves,
    roles::{admits, is_put},
};
