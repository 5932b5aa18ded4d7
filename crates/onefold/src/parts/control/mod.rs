//! The control socket: how verbs reach a store that is being served.
//!
//! One line of JSON asks, and lines of JSON answer: any number that tell progress, then one that
//! ends it. The right to ask is checked by the socket itself ([`onefold_backend::peer`]): root and
//! the user of the server. [`places`] says where the socket is.

mod client;
pub mod places;
mod server;
pub mod stream;
mod streams;

use std::{ops::Range, sync::Arc, time::Duration};

use onefold_block::{
    Acts, Copies, DomainStatus, Engine, ReceiveState, Store, Traffic, VolumeState, VolumeStatus,
    check::{exclusive, volume_space},
    receives,
};
use onefold_core::{BLOCK_BYTES, Error, Kind, Result, VolumeId, VolumeLimits};
use serde::{Deserialize, Serialize};

pub use client::Client;
pub use server::{Heard, Served, Server};

/// Longest line in bytes: a status with 65,536 volumes of long names fits; more is no message of
/// ours.
const LINE_MAX: u64 = 64 << 20;

/// Longest request in bytes: 256 snapshots of volumes with long names fit.
const REQUEST_MAX: u64 = 128 << 10;

/// The requests to a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    /// Which process serves.
    Pid,
    /// Everything that `onefold status` shows.
    Status,
    /// All volumes.
    VolumeList,
    /// A new volume.
    VolumeCreate {
        name: String,
        bytes: u64,
        #[serde(default)]
        no_dedup: Vec<Range<u64>>,
        #[serde(default, skip_serializing_if = "Speed::is_any")]
        limits: Speed,
        /// Bytes that clients may map in it, of a block store; 0 for any number.
        #[serde(default, skip_serializing_if = "is_zero")]
        quota: u64,
        /// The name of the domain that it belongs to; none for the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
    },
    /// Another size.
    VolumeResize {
        name: String,
        bytes: u64,
        /// Also to a smaller one.
        #[serde(default)]
        force: bool,
    },
    /// Other ranges that are not deduplicated, in blocks.
    VolumeNoDedup { name: String, no_dedup: Vec<Range<u64>> },
    /// Other limits for its clients.
    VolumeLimit { name: String, limits: Speed },
    /// Bytes that clients may map in it; 0 for any number.
    VolumeQuota { name: String, bytes: u64 },
    /// Bytes that a domain may store, and bytes that are kept for it; 0 for none, and what it has stays
    /// when it is absent.
    DomainLimits {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quota: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reserve: Option<u64>,
    },
    /// Another name.
    VolumeRename { name: String, new_name: String },
    /// No volume any more.
    VolumeDelete {
        name: String,
        /// Also while clients have it open.
        #[serde(default)]
        force: bool,
    },
    /// Makes a volume of another one, of an archive.
    VolumeClone {
        of: String,
        name: String,
        #[serde(default)]
        read_only: bool,
    },
    /// Snapshots like `vm1@monday`, all as of one moment; progress tells that it has begun.
    SnapshotCreate { snapshots: Vec<String> },
    /// All snapshots.
    SnapshotList,
    /// The same, with the space that only they hold; ends when the client goes away.
    SnapshotSpace,
    /// The space of all volumes.
    VolumeSpace,
    /// No snapshot any more.
    SnapshotDelete {
        name: String,
        #[serde(default)]
        force: bool,
    },
    /// Another name, without the volume's.
    SnapshotRename { name: String, new_name: String },
    /// The volume holds what its snapshot holds.
    SnapshotRollback {
        name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep: Option<String>,
        #[serde(default)]
        force: bool,
    },
    /// A new volume that holds what a snapshot or a volume holds.
    SnapshotClone { of: String, name: String },
    /// What a volume or a snapshot holds, as a stream of raw data that follows in pieces
    /// ([`stream`]), before the answer.
    Export { name: String },
    /// A new volume of a stream of raw data, which follows in pieces when the answer says that it
    /// may.
    Import {
        name: String,
        /// The name of the domain that it belongs to; none for the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
    },
    /// A snapshot as a stream, as with an export.
    Send {
        snapshot: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<String>,
        /// The receiver's answers follow in pieces, and say what is missing there.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        negotiates: bool,
        /// Blocks that can't be read are sent as lost.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        skip_damaged: bool,
    },
    /// A snapshot from another store, as with an import.
    Receive {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        volume: Option<String>,
        #[serde(default)]
        rollback: bool,
        /// The name of the domain that it belongs to; none for that of its base, or the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<String>,
        /// Answers for the sender come back in pieces, before the answer.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        negotiates: bool,
    },
    /// All snapshots that are being received.
    ReceiveList,
    /// What is being received for a volume is given up.
    ReceiveAbort { volume: String },
    /// What was being received is given up where nothing has come for so many days.
    ReceiveExpire { days: u32 },
    /// A replica becomes an ordinary volume.
    VolumePromote { name: String },
    /// A larger store: of so many bytes, or of all that its device or file has.
    Grow {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// A comparison of all data with its fingerprints, which ends when the client goes away.
    Scrub,
    /// The same of what a volume or a snapshot holds.
    ScrubOnly { name: String },
    /// A stream into an archive, which follows when the answer says that it may, in the form of
    /// [`stream`].
    Put {
        name: String,
        /// The stream is a directory's data and its listing.
        #[serde(default)]
        tree: bool,
        /// The number of its domain; without one that of the stream that it replaces.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        domain: Option<u32>,
    },
    /// A snapshot of directories into an archive, which follows as with a put.
    Backup(Box<Backup>),
    /// A copy of a snapshot of another archive, which follows as with a put. Servers from before copies refuse it.
    Copy(Box<Backup>),
}

impl Request {
    /// True when it changes nothing, and gives nothing of what volumes hold.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        matches!(
            self,
            Request::Pid
                | Request::Status
                | Request::VolumeList
                | Request::SnapshotList
                | Request::SnapshotSpace
                | Request::VolumeSpace
                | Request::ReceiveList
        )
    }
}

/// The snapshot that a backup makes; ids are in hexadecimal digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    pub id: String,
    pub set: String,
    /// The number of its domain; without one that of the set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<u32>,
    pub host: String,
    pub machine: String,
    pub paths: Vec<Vec<u8>>,
    pub tags: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    #[serde(default)]
    pub accept: bool,
    /// What a copy says of itself; nothing else has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied: Option<Copied>,
}

/// What a copy says of itself as its snapshot does: times are in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    pub began: u64,
    pub ended: u64,
    /// The fingerprint of its root where it comes from.
    pub root: String,
    /// `whole`, `partial` or `shrunk`.
    pub state: String,
    pub left_out: u64,
}

/// How fast clients may use a volume; zero sets no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Speed {
    /// Requests a second.
    pub iops: u32,
    /// Bytes a second.
    pub bytes: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Speed {
    /// True when nothing is limited.
    pub fn is_any(&self) -> bool {
        *self == Speed::default()
    }
}

impl From<VolumeLimits> for Speed {
    fn from(VolumeLimits { iops, bytes }: VolumeLimits) -> Speed {
        Speed { iops, bytes }
    }
}

impl From<Speed> for VolumeLimits {
    fn from(Speed { iops, bytes }: Speed) -> VolumeLimits {
        VolumeLimits { iops, bytes }
    }
}

/// A line of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// So far; the answer is still to come.
    Progress { what: String, done: u64, total: u64 },
    /// The command is done.
    Done { value: serde_json::Value },
    /// The command failed.
    Failed { kind: String, message: String },
}

/// Told how far long work is: what is being done, bytes done, and bytes in all or 0. The work is
/// given up when this fails.
pub type Tell<'a> = dyn FnMut(&str, u64, u64) -> Result<()> + Send + 'a;

/// A volume, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeLine {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of it that are not deduplicated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_dedup: Vec<Range<u64>>,
    /// How fast clients may use it.
    #[serde(default, skip_serializing_if = "Speed::is_any")]
    pub limits: Speed,
    /// Bytes that clients may map in it; absent where any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Bytes that its quota charges, as of the last checkpoint; absent where nobody has counted them, and
    /// without a quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_bytes: Option<u64>,
    /// The number of the domain that it belongs to; 0 for the one that each store begins with.
    #[serde(default)]
    pub domain: u32,
    /// The name of that; empty for the first one, and for one that was erased.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain_name: String,
    /// That was erased: nobody can read it any more.
    #[serde(default)]
    pub erased: bool,
    /// True when only `onefold receive` changes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replica: bool,
    /// How many snapshots it has.
    #[serde(default)]
    pub snapshots: u64,
    /// Content of it without zeroes and holes: as of the last checkpoint where the store counts that, and
    /// else where somebody has asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped_bytes: Option<u64>,
    /// Bytes of it that are known to be lost, as of the last checkpoint: they read as errors.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Space that deleting it would free at least, where somebody has asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_bytes: Option<u64>,
    /// What clients of the server did with it.
    #[serde(flatten)]
    pub traffic: Option<VolumeTraffic>,
}

/// What clients read from a volume, and wrote to it, since its server began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeTraffic {
    /// Ranges that were read.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Writes of data.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
}

impl From<Traffic> for VolumeTraffic {
    fn from(traffic: Traffic) -> VolumeTraffic {
        let Traffic { reads, read_bytes, writes, written_bytes } = traffic;
        VolumeTraffic { reads, read_bytes, writes, written_bytes }
    }
}

/// The space of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpace {
    /// All volumes.
    pub volumes: Vec<VolumeLine>,
    /// Pages that could not be read, so that the space is more.
    pub unread_pages: u64,
}

impl VolumeSpace {
    /// Walks through the maps of all volumes; `pause` as for [`SnapshotSpace::of`].
    pub fn of(engine: &Engine, pause: &mut dyn FnMut(Duration) -> bool) -> Option<VolumeSpace> {
        let found = volume_space(engine, pause);
        if found.cancelled {
            return None;
        }
        let mut volumes: Vec<VolumeLine> =
            engine.status().volumes.iter().map(VolumeLine::of).collect();
        let bytes = |blocks: Option<&u64>| blocks.map(|blocks| blocks * BLOCK_BYTES as u64);
        for line in &mut volumes {
            line.mapped_bytes = bytes(found.mapped.get(&line.name));
            line.exclusive_bytes = bytes(found.exclusive.get(&line.name));
        }
        Some(VolumeSpace { volumes, unread_pages: found.unread })
    }
}

impl VolumeLine {
    pub fn of(volume: &VolumeStatus) -> VolumeLine {
        let no_dedup = volume
            .no_dedup
            .ranges()
            .iter()
            .map(|range| range.start * 4096..range.end * 4096)
            .collect();
        VolumeLine {
            name: volume.name.clone(),
            bytes: volume.bytes,
            no_dedup,
            limits: volume.limits.into(),
            quota_bytes: (volume.quota_blocks > 0)
                .then_some(volume.quota_blocks * BLOCK_BYTES as u64),
            charged_bytes: volume.charged_blocks.map(|blocks| blocks * BLOCK_BYTES as u64),
            domain: volume.domain,
            domain_name: volume.domain_name.clone().unwrap_or_default(),
            erased: volume.domain_name.is_none(),
            replica: volume.replica,
            snapshots: volume.snapshots,
            mapped_bytes: volume.mapped_blocks.map(|blocks| blocks * BLOCK_BYTES as u64),
            lost_bytes: volume.lost_blocks * BLOCK_BYTES as u64,
            exclusive_bytes: None,
            traffic: volume.traffic.map(VolumeTraffic::from),
        }
    }
}

/// A domain with limits, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainLine {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Bytes that it stores, as of the last checkpoint; `null` when nobody knows: a page can't be read.
    pub stored_bytes: Option<u64>,
    /// Bytes that may be stored in it; absent where any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Bytes that are kept for it; absent where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
}

impl DomainLine {
    pub fn of(domain: &DomainStatus) -> DomainLine {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_BYTES as u64);
        let some = |blocks: u64| (blocks > 0).then(|| bytes(blocks));
        DomainLine {
            number: domain.number,
            name: domain.name.clone(),
            stored_bytes: domain.stored_blocks.map(bytes),
            quota_bytes: some(domain.limits.quota),
            reserve_bytes: some(domain.limits.reserve),
        }
    }
}

/// A snapshot, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotLine {
    /// Its name, with its volume's: `vm1@monday`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Space that deleting it would free at least, where somebody has asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_bytes: Option<u64>,
}

/// The space that only snapshots hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSpace {
    /// All snapshots.
    pub snapshots: Vec<SnapshotLine>,
    /// What deleted volumes and snapshots hold that are being taken apart.
    pub leaving_bytes: u64,
    /// What pages hold that deleted snapshots left to the maps that borrow from them.
    pub orphan_bytes: u64,
    /// Pages that could not be read, so that the space is more.
    pub unread_pages: u64,
}

impl SnapshotSpace {
    /// Walks through the maps of all snapshots. `pause` is told after each piece of work how long it
    /// took, may wait, and ends the walk by returning false: then there is no answer.
    pub fn of(engine: &Engine, pause: &mut dyn FnMut(Duration) -> bool) -> Option<SnapshotSpace> {
        let found = exclusive(engine, pause);
        if found.cancelled {
            return None;
        }
        let mut snapshots = SnapshotLine::all(engine);
        for line in &mut snapshots {
            let blocks = found.snapshots.get(&line.name);
            line.exclusive_bytes = blocks.map(|blocks| blocks * BLOCK_BYTES as u64);
        }
        Some(SnapshotSpace {
            snapshots,
            leaving_bytes: found.leaving * BLOCK_BYTES as u64,
            orphan_bytes: found.orphans * BLOCK_BYTES as u64,
            unread_pages: found.unread,
        })
    }
}

impl SnapshotLine {
    /// All snapshots of a store, by the names of their volumes and their age.
    pub fn all(engine: &Engine) -> Vec<SnapshotLine> {
        let mut volumes = engine.volumes();
        volumes.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        let of = |(id, volume): (VolumeId, VolumeState)| {
            Acts::of(engine).snapshots(id).into_iter().map(move |(_, snapshot)| SnapshotLine {
                name: format!("{}@{}", volume.name, snapshot.name),
                bytes: snapshot.blocks * 4096,
                created_ms: snapshot.snapshot.map_or(0, |origin| origin.made_ms),
                exclusive_bytes: None,
            })
        };
        volumes.into_iter().flat_map(of).collect()
    }
}

/// A snapshot that is being received, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveLine {
    /// The snapshot as it will be called, like `vm1@monday`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of it, from the beginning, that are there.
    pub received_bytes: u64,
    /// By which `onefold send --resume` goes on.
    pub token: String,
    /// When more of these bytes came last, in milliseconds since 1970; 0 of a server of an older
    /// version.
    #[serde(default)]
    pub heard_ms: u64,
    /// True when somebody sends it right now.
    #[serde(default)]
    pub at_work: bool,
    /// What is damaged of it: it can only be given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl ReceiveLine {
    /// All of a store.
    pub fn all(store: &Arc<Store>) -> Vec<ReceiveLine> {
        Copies::of(store).receives().into_iter().map(ReceiveLine::from).collect()
    }

    /// All of a store that nobody serves.
    pub fn of(engine: &Engine) -> Vec<ReceiveLine> {
        receives(engine).into_iter().map(ReceiveLine::from).collect()
    }

    /// The volume that gets it.
    pub fn volume(&self) -> &str {
        self.name.rsplit_once('@').map_or("", |(volume, _)| volume)
    }
}

impl From<ReceiveState> for ReceiveLine {
    fn from(receive: ReceiveState) -> ReceiveLine {
        ReceiveLine {
            name: receive.name,
            bytes: receive.bytes,
            received_bytes: receive.received_bytes,
            token: receive.token.to_string(),
            heard_ms: receive.heard_ms,
            at_work: receive.at_work,
            damage: None,
        }
    }
}

impl From<onefold_cluster::ReceiveState> for ReceiveLine {
    fn from(receive: onefold_cluster::ReceiveState) -> ReceiveLine {
        ReceiveLine {
            name: receive.name,
            bytes: receive.bytes,
            received_bytes: receive.received_bytes,
            token: receive.token.to_string(),
            heard_ms: receive.heard_ms,
            at_work: receive.at_work,
            damage: receive.damage,
        }
    }
}

/// The kinds by their names on the wire.
const KINDS: [(Kind, &str); 11] = [
    (Kind::InvalidInput, "invalid-input"),
    (Kind::NotFound, "not-found"),
    (Kind::Exists, "exists"),
    (Kind::NoSpace, "no-space"),
    (Kind::Busy, "busy"),
    (Kind::Corrupt, "corrupt"),
    (Kind::Stopped, "stopped"),
    (Kind::Unsupported, "unsupported"),
    (Kind::Denied, "denied"),
    (Kind::Io, "io"),
    (Kind::Memory, "memory"),
];

impl From<&Error> for Answer {
    fn from(error: &Error) -> Answer {
        let kind =
            KINDS.iter().find(|(kind, _)| *kind == error.kind()).map_or("io", |(_, name)| name);
        Answer::Failed { kind: kind.to_owned(), message: error.to_string() }
    }
}

/// The error that an answer told.
fn told(kind: &str, message: String) -> Error {
    let kind = KINDS.iter().find(|(_, name)| *name == kind).map_or(Kind::Io, |(kind, _)| *kind);
    Error::new(kind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_kind_and_sentence_on_the_way() {
        for (kind, _) in KINDS {
            let Answer::Failed { kind: name, message } =
                Answer::from(&Error::new(kind, "a sentence"))
            else {
                panic!()
            };
            let error = told(&name, message);
            assert_eq!((error.kind(), error.to_string().as_str()), (kind, "a sentence"));
        }
    }

    #[test]
    fn rule_49_any_line_is_a_request_or_an_error() {
        let good = [
            Request::Pid,
            Request::Status,
            Request::VolumeCreate {
                name: "a\u{7f}".into(),
                bytes: u64::MAX,
                no_dedup: vec![0..5, 9..10],
                limits: Speed { iops: 5, bytes: 0 },
                quota: 1 << 30,
                domain: Some("one".into()),
            },
            Request::VolumeRename { name: "a".into(), new_name: "b".into() },
            Request::VolumeClone { of: "a".into(), name: "b".into(), read_only: true },
            Request::Put { name: "s".into(), tree: true, domain: Some(3) },
            Request::Backup(Box::new(Backup { set: "s".into(), ..Backup::default() })),
            Request::Copy(Box::new(Backup {
                copied: Some(Copied::default()),
                ..Backup::default()
            })),
            Request::Send {
                snapshot: "a@b".into(),
                from: Some("a@a".into()),
                resume: None,
                negotiates: true,
                skip_damaged: true,
            },
            Request::Receive {
                volume: Some("a".into()),
                rollback: true,
                domain: Some("one".into()),
                negotiates: false,
            },
        ];
        let mut state = 1u64;
        let mut below = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let mut understood = 0;
        for round in 0..20_000 {
            let mut line = serde_json::to_vec(&good[round % good.len()]).unwrap();
            for _ in 0..below(4) {
                let at = below(line.len());
                match below(3) {
                    0 => line[at] = br#"{}[]",:0-9eE.\u"#[below(15)],
                    1 => drop(line.remove(at)),
                    _ => line.insert(at, below(256) as u8),
                }
            }
            // The server's reading of it; deep nesting ends at the parser's own limit.
            understood += u32::from(serde_json::from_slice::<Request>(&line).is_ok());
        }
        assert!(understood > 4000, "{understood}");
        let deep = [&b"{\"ask\":"[..], &vec![b'['; REQUEST_MAX as usize]].concat();
        assert!(serde_json::from_slice::<Request>(&deep).is_err());
    }

    #[test]
    fn the_wire_format_is_as_documented() {
        let line = serde_json::to_string(&Request::VolumeRename {
            name: "a".into(),
            new_name: "b".into(),
        })
        .unwrap();
        assert_eq!(line, r#"{"ask":"volume-rename","name":"a","new_name":"b"}"#);
        assert_eq!(serde_json::to_string(&Request::Status).unwrap(), r#"{"ask":"status"}"#);
        let line =
            serde_json::to_string(&Answer::Progress { what: "data".into(), done: 1, total: 2 })
                .unwrap();
        assert_eq!(line, r#"{"answer":"progress","what":"data","done":1,"total":2}"#);
    }
}
