//! The description of all figures that a server shows: name, unit, type, help, and where each stands
//! in the report of `status --json`.
//!
//! `/metrics` and the table of the reference are made from it. A figure that is not in an engine's
//! report is left out there.

/// An engine, as the report's key `engine` names it.
pub(crate) type Engine = &'static str;

const BLOCK: &[Engine] = &["block"];
const ARCHIVE: &[Engine] = &["archive"];
const CLUSTER: &[Engine] = &["cluster"];
const ALL: &[Engine] = &["block", "archive", "cluster"];

/// Bytes of a block, in which the block engine counts.
const IN_BLOCKS: u64 = onefold_core::BLOCK_BYTES as u64;

/// How a figure behaves over time, in the terms of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It rises until the server ends.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Counts by upper bounds, with a sum.
    Histogram,
    /// A count and a sum.
    Summary,
}

impl Kind {
    /// The name in the text format.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Seconds,
    /// A number of things, which the name says.
    Number,
    /// 1 for yes, 0 for no.
    Truth,
}

/// The clients that may see a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Everybody whom the operator lets in.
    ByAll,
    /// The operator, because it tells what the store holds: rule 14 of SECURITY.md.
    ByOperator,
}

/// How values are read at a place of the report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Read {
    /// A number, times a factor.
    Number(u64),
    /// 1 when there is something, 0 for `null`.
    IsThere,
    /// The length of a list.
    Length,
    /// The number in this field of each volume of a list, by its name.
    OfVolumes(&'static str),
    /// The number in this field of each domain of a list, by its name.
    OfDomains(&'static str),
    /// The same of each snapshot; of more than have labels there is nothing, as sums would mean
    /// nothing.
    OfSnapshots(&'static str),
    /// A list of operations with counts, sums and buckets.
    Operations,
    /// A count and a sum in seconds.
    Times,
    /// 1, with texts of the report as labels.
    Texts(&'static [(&'static str, &'static str)]),
}

/// Where values of a figure stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    /// The engines in whose reports this is.
    pub(crate) engines: &'static [Engine],
    /// The place, as a JSON pointer.
    pub(crate) at: &'static str,
    pub(crate) read: Read,
    /// A label that all values from here have.
    pub(crate) label: Option<(&'static str, &'static str)>,
}

impl Source {
    const fn new(engines: &'static [Engine], at: &'static str, read: Read) -> Source {
        Source { engines, at, read, label: None }
    }

    const fn labelled(self, name: &'static str, value: &'static str) -> Source {
        Source { label: Some((name, value)), ..self }
    }
}

/// A number as it stands.
const fn number(engines: &'static [Engine], at: &'static str) -> Source {
    Source::new(engines, at, Read::Number(1))
}

/// Bytes, from a number of blocks.
const fn blocks(at: &'static str) -> Source {
    Source::new(BLOCK, at, Read::Number(IN_BLOCKS))
}

/// A figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    /// Its name, without `onefold_` before it.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) unit: Unit,
    pub(crate) seen: Seen,
    /// What it counts, in one sentence.
    pub(crate) help: &'static str,
    pub(crate) sources: &'static [Source],
}

const fn figure(
    name: &'static str,
    (kind, unit): (Kind, Unit),
    seen: Seen,
    help: &'static str,
    sources: &'static [Source],
) -> Figure {
    Figure { name, kind, unit, seen, help, sources }
}

use self::{
    Kind::{Counter, Gauge, Histogram, Summary},
    Seen::{ByAll, ByOperator},
    Unit::{Bytes, Number, Seconds, Truth},
};

/// All figures.
pub(crate) const FIGURES: &[Figure] = &[
    figure(
        "build_info",
        (Gauge, Truth),
        ByAll,
        "The version of the server, and the engine of its store.",
        &[Source::new(
            ALL,
            "/server",
            Read::Texts(&[("version", "/server/version"), ("engine", "/engine")]),
        )],
    ),
    figure(
        "uptime_seconds",
        (Gauge, Seconds),
        ByAll,
        "Time since the server opened the store.",
        &[number(ALL, "/server/uptime_seconds")],
    ),
    figure(
        "writes_stopped",
        (Gauge, Truth),
        ByAll,
        "Whether the store takes no more writes; the log and the page say why.",
        &[
            Source::new(BLOCK, "/stopped", Read::IsThere),
            Source::new(ARCHIVE, "/server/stopped", Read::IsThere),
        ],
    ),
    figure(
        "witness_behind_seconds",
        (Gauge, Seconds),
        ByAll,
        "For how long the store has a durable state that its witness does not know.",
        &[number(BLOCK, "/server/witness/behind_seconds")],
    ),
    figure(
        "witness_failures_total",
        (Counter, Number),
        ByAll,
        "How often the witness did not take the state that it was told.",
        &[number(BLOCK, "/server/witness/failures")],
    ),
    figure(
        "client_read_bytes_total",
        (Counter, Bytes),
        ByAll,
        "Bytes that clients read from volumes.",
        &[number(ALL, "/server/nbd/read_bytes")],
    ),
    figure(
        "client_written_bytes_total",
        (Counter, Bytes),
        ByAll,
        "Bytes that clients wrote to volumes.",
        &[number(ALL, "/server/nbd/written_bytes")],
    ),
    figure(
        "request_duration_seconds",
        (Histogram, Seconds),
        ByAll,
        "Requests of clients by how long they took, from when the server took one up until its \
         answer was ready.",
        &[Source::new(ALL, "/server/nbd/durations", Read::Operations)],
    ),
    figure(
        "request_errors_total",
        (Counter, Number),
        ByAll,
        "Requests of clients that were answered with an error.",
        &[number(ALL, "/server/nbd/errors")],
    ),
    figure(
        "requests_in_flight",
        (Gauge, Number),
        ByAll,
        "Requests that were received and not yet answered.",
        &[number(ALL, "/server/nbd/in_flight")],
    ),
    figure(
        "connections",
        (Gauge, Number),
        ByAll,
        "Clients that are connected.",
        &[number(ALL, "/server/nbd/connections")],
    ),
    figure(
        "connections_accepted_total",
        (Counter, Number),
        ByAll,
        "Connections that were accepted.",
        &[number(ALL, "/server/nbd/accepted")],
    ),
    figure(
        "connections_refused_total",
        (Counter, Number),
        ByAll,
        "Connections that were closed because there were too many.",
        &[number(ALL, "/server/nbd/refused")],
    ),
    figure(
        "cpu_seconds_total",
        (Counter, Seconds),
        ByAll,
        "Processor time of the server.",
        &[number(ALL, "/server/cpu_seconds")],
    ),
    figure(
        "resident_memory_bytes",
        (Gauge, Bytes),
        ByAll,
        "Memory of the server.",
        &[number(BLOCK, "/server/memory/resident_bytes")],
    ),
    figure(
        "device_written_bytes_total",
        (Counter, Bytes),
        ByOperator,
        "Bytes written to the medium, by what they are; of an archive since it was made, by what \
         wrote them.",
        &[
            blocks("/server/writes/data_blocks").labelled("class", "data"),
            blocks("/server/writes/carrier_blocks").labelled("class", "carrier"),
            blocks("/server/writes/leftover_blocks").labelled("class", "leftover"),
            blocks("/server/writes/in_place_blocks").labelled("class", "in_place"),
            blocks("/server/writes/list_blocks").labelled("class", "list"),
            blocks("/server/writes/checkpoint_blocks").labelled("class", "checkpoint"),
            blocks("/server/writes/super_blocks").labelled("class", "super"),
            number(ARCHIVE, "/work/upload_written_bytes").labelled("class", "upload"),
            number(ARCHIVE, "/work/encode_written_bytes").labelled("class", "encode"),
            number(ARCHIVE, "/work/merge_written_bytes").labelled("class", "merge"),
        ],
    ),
    figure(
        "deduplicated_bytes_total",
        (Counter, Bytes),
        ByOperator,
        "Bytes that clients wrote and that were stored already.",
        &[blocks("/server/writes/duplicate_blocks")],
    ),
    figure(
        "flushes_total",
        (Counter, Number),
        ByOperator,
        "Flushes of the device, durable writes included.",
        &[number(BLOCK, "/server/writes/flushes")],
    ),
    figure(
        "checkpoint_duration_seconds",
        (Summary, Seconds),
        ByOperator,
        "Checkpoints, and how long they took, waiting for readers and flushes included.",
        &[Source::new(BLOCK, "/server/checkpoints", Read::Times)],
    ),
    figure(
        "moved_blocks_total",
        (Counter, Number),
        ByOperator,
        "Blocks that the store wrote again by itself: next to their neighbours, by moves or, with leaves \
         in place, by records (compaction), or elsewhere to make whole zones free, or under \
         another data key, or packed with others into one.",
        &[
            number(BLOCK, "/server/writes/moved_blocks").labelled("why", "compaction"),
            number(BLOCK, "/server/writes/neighbour_blocks").labelled("why", "neighbours"),
            number(BLOCK, "/server/writes/emptied_blocks").labelled("why", "emptying"),
            number(BLOCK, "/server/writes/resealed_blocks").labelled("why", "resealing"),
            number(BLOCK, "/server/writes/packed_blocks").labelled("why", "packing"),
        ],
    ),
    figure(
        "page_cache_lookups_total",
        (Counter, Number),
        ByOperator,
        "Looks for a page of the tables in memory.",
        &[
            number(BLOCK, "/server/page_cache/hits").labelled("result", "hit"),
            number(BLOCK, "/server/page_cache/misses").labelled("result", "miss"),
        ],
    ),
    figure(
        "store_size_bytes",
        (Gauge, Bytes),
        ByOperator,
        "All space that data and tables can use.",
        &[number(BLOCK, "/space/usable_bytes"), number(CLUSTER, "/total_bytes")],
    ),
    figure(
        "store_free_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Space that new data can use now.",
        &[number(BLOCK, "/space/free_bytes"), number(&["archive", "cluster"], "/free_bytes")],
    ),
    figure(
        "store_used_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Space that is used, by what for.",
        &[
            number(BLOCK, "/space/stored_bytes").labelled("kind", "data"),
            number(BLOCK, "/space/table_bytes").labelled("kind", "tables"),
            number(ARCHIVE, "/stored_bytes").labelled("kind", "containers"),
            number(CLUSTER, "/used_bytes").labelled("kind", "all"),
        ],
    ),
    figure(
        "store_pending_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Space that is to be freed.",
        &[number(BLOCK, "/space/pending_bytes"), number(ARCHIVE, "/held_back_bytes")],
    ),
    figure(
        "store_mapped_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Content of all volumes without zeroes and holes, as of the last checkpoint.",
        &[number(BLOCK, "/space/mapped_bytes")],
    ),
    figure(
        "store_packed_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Content that is packed, several blocks in one, and the space that it takes.",
        &[
            number(BLOCK, "/space/packed_bytes").labelled("of", "content"),
            number(BLOCK, "/space/pack_bytes").labelled("of", "packs"),
        ],
    ),
    figure(
        "snapshots",
        (Gauge, Number),
        ByOperator,
        "Snapshots of volumes.",
        &[number(BLOCK, "/snapshots")],
    ),
    figure(
        "snapshot_created_timestamp_seconds",
        (Gauge, Seconds),
        ByOperator,
        "When a snapshot was made, since 1970.",
        &[Source::new(BLOCK, "/maps/snapshots", Read::OfSnapshots("created_seconds"))],
    ),
    figure(
        "snapshot_exclusive_bytes",
        (Gauge, Bytes),
        ByOperator,
        "What deleting a snapshot would free at least, as `snapshot list --space` found it last.",
        &[Source::new(BLOCK, "/maps/snapshots", Read::OfSnapshots("exclusive_bytes"))],
    ),
    figure(
        "snapshot_space_age_seconds",
        (Gauge, Seconds),
        ByOperator,
        "How long ago `snapshot list --space` looked at the space of snapshots.",
        &[number(BLOCK, "/maps/space/age_seconds")],
    ),
    figure(
        "clones",
        (Gauge, Number),
        ByOperator,
        "Volumes that were made from a snapshot or another volume.",
        &[number(BLOCK, "/clones")],
    ),
    figure(
        "acts_waiting",
        (Gauge, Number),
        ByOperator,
        "Snapshots, clones, rollbacks and parts of receives that are not durable yet or wait for room.",
        &[number(BLOCK, "/acts_waiting")],
    ),
    figure(
        "snapshots_held_bytes",
        (Gauge, Bytes),
        ByOperator,
        "What deleting each snapshot by itself would free at least, all together, as `snapshot list --space` found it last.",
        &[number(BLOCK, "/maps/space/snapshot_bytes")],
    ),
    figure(
        "deleted_maps_bytes",
        (Gauge, Bytes),
        ByOperator,
        "What deleted volumes and snapshots still held, as `snapshot list --space` found it last.",
        &[
            number(BLOCK, "/maps/space/leaving_bytes").labelled("kind", "leaving"),
            number(BLOCK, "/maps/space/orphan_bytes").labelled("kind", "orphans"),
        ],
    ),
    figure(
        "orphan_pages",
        (Gauge, Number),
        ByOperator,
        "Pages of maps that deleted snapshots left behind, and that wait to be handed over.",
        &[number(BLOCK, "/orphan_pages")],
    ),
    figure(
        "volume_size_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Size of a volume.",
        &[
            Source::new(&["block", "archive"], "/volumes", Read::OfVolumes("bytes")),
            Source::new(CLUSTER, "/served", Read::OfVolumes("bytes")),
        ],
    ),
    figure(
        "volume_mapped_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Content of a volume without zeroes and holes; of a block store where it has snapshots, clones or \
         quotas, as of the last checkpoint.",
        &[Source::new(&["block", "archive"], "/volumes", Read::OfVolumes("mapped_bytes"))],
    ),
    figure(
        "volume_quota_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Most bytes of content that clients may map in a volume; only of volumes with a quota.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("quota_bytes"))],
    ),
    figure(
        "volume_charged_bytes",
        (Gauge, Bytes),
        ByOperator,
        "What of a volume's quota is taken, as of the last checkpoint: content, and pages of its map beyond those \
         that are free; only of volumes with a quota.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("charged_bytes"))],
    ),
    figure(
        "domain_stored_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Bytes that a domain stores, each block once, as of the last checkpoint; only of domains with limits.",
        &[Source::new(BLOCK, "/domains", Read::OfDomains("stored_bytes"))],
    ),
    figure(
        "domain_quota_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Most bytes that may be stored in a domain; only of domains with a quota.",
        &[Source::new(BLOCK, "/domains", Read::OfDomains("quota_bytes"))],
    ),
    figure(
        "domain_reserve_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Bytes that are kept for a domain; only of domains with a reserve.",
        &[Source::new(BLOCK, "/domains", Read::OfDomains("reserve_bytes"))],
    ),
    figure(
        "volume_lost_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Bytes of a volume that are known to be lost, and read as errors until they are written or \
         trimmed.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("lost_bytes"))],
    ),
    figure(
        "volume_snapshots",
        (Gauge, Number),
        ByOperator,
        "Snapshots of a volume.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("snapshots"))],
    ),
    figure(
        "volume_reads_total",
        (Counter, Number),
        ByOperator,
        "Reads of a volume, long ones in parts.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("reads"))],
    ),
    figure(
        "volume_read_bytes_total",
        (Counter, Bytes),
        ByOperator,
        "Bytes that were read from a volume.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("read_bytes"))],
    ),
    figure(
        "volume_writes_total",
        (Counter, Number),
        ByOperator,
        "Writes of data to a volume, long ones in parts.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("writes"))],
    ),
    figure(
        "volume_written_bytes_total",
        (Counter, Bytes),
        ByOperator,
        "Bytes that were written to a volume.",
        &[Source::new(BLOCK, "/volumes", Read::OfVolumes("written_bytes"))],
    ),
    figure(
        "streams",
        (Gauge, Number),
        ByOperator,
        "Streams of the archive.",
        &[number(ARCHIVE, "/streams")],
    ),
    figure(
        "directory_snapshots",
        (Gauge, Number),
        ByOperator,
        "Snapshots of directories that the archive lists.",
        &[number(ARCHIVE, "/snapshots")],
    ),
    figure(
        "replay_due",
        (Gauge, Number),
        ByOperator,
        "Work that waits for a background replay of the archive: containers to import, changes and \
         nodes to count, files of the chunk index to merge.",
        &[
            number(ARCHIVE, "/due/import_containers").labelled("work", "import"),
            number(ARCHIVE, "/due/count_changes").labelled("work", "count_changes"),
            number(ARCHIVE, "/due/count_nodes").labelled("work", "count_nodes"),
            number(ARCHIVE, "/due/merge_files").labelled("work", "merge"),
        ],
    ),
    figure(
        "replay_log_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Operations log since the last checkpoint of the archive's tables.",
        &[number(ARCHIVE, "/due/log_bytes")],
    ),
    figure(
        "replayed_total",
        (Counter, Number),
        ByOperator,
        "Work that the background replay of the archive did: portions of imports and of counting, \
         files of the chunk index that became others, checkpoints of the tables.",
        &[
            number(ARCHIVE, "/server/replay/imports").labelled("work", "import"),
            number(ARCHIVE, "/server/replay/counts").labelled("work", "count"),
            number(ARCHIVE, "/server/replay/merged_files").labelled("work", "merge"),
            number(ARCHIVE, "/server/replay/checkpoints").labelled("work", "checkpoint"),
        ],
    ),
    figure(
        "replay_gave_way_total",
        (Counter, Number),
        ByOperator,
        "Portions of background replay that were given up because clients stayed at work.",
        &[number(ARCHIVE, "/server/replay/gave_way")],
    ),
    figure(
        "index_lost_files",
        (Gauge, Number),
        ByOperator,
        "Files of the archive's chunk index that are lost: the next ingesting process makes it anew.",
        &[number(ARCHIVE, "/index_lost_files")],
    ),
    figure(
        "index_directory_failed",
        (Gauge, Truth),
        ByOperator,
        "The directory of the archive's chunk index is not used, or failed since the server began.",
        &[
            Source::new(ARCHIVE, "/index_directory_unused", Read::IsThere)
                .labelled("why", "unused"),
            Source::new(ARCHIVE, "/server/index_failed", Read::IsThere).labelled("why", "failed"),
        ],
    ),
    figure(
        "damaged_chunks",
        (Gauge, Number),
        ByOperator,
        "Chunks of the archive that are known to be damaged.",
        &[number(ARCHIVE, "/damaged_chunks")],
    ),
    figure(
        "absent_nodes",
        (Gauge, Number),
        ByOperator,
        "Nodes of the archive that do not count.",
        &[Source::new(ARCHIVE, "/absent", Read::Length)],
    ),
    figure(
        "uncommitted_records",
        (Gauge, Number),
        ByOperator,
        "Records that no checkpoint holds.",
        &[number(BLOCK, "/uncommitted/records")],
    ),
    figure(
        "uncommitted_records_limit",
        (Gauge, Number),
        ByOperator,
        "Most records that there may be without a checkpoint.",
        &[number(BLOCK, "/uncommitted/records_max")],
    ),
    figure(
        "dirty_bytes",
        (Gauge, Bytes),
        ByOperator,
        "Bytes that were written to volumes and are not durable yet.",
        &[number(ARCHIVE, "/server/dirty_bytes")],
    ),
    figure(
        "backlog_objects",
        (Gauge, Number),
        ByOperator,
        "Objects that wait to be deduplicated.",
        &[number(CLUSTER, "/backlog")],
    ),
];
