//! `onefold gc`: frees what no stream or volume needs.

mod left;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use onefold_archive::{
    Collection, CollectionOptions as Collect, CountsFound, Format, Miscounted, Settings,
    is_clock_ahead,
};
use serde::Serialize;
use serde_json::json;

use self::left::Left;
use super::{Found, cluster, keeping::period::period, refused};
use onefold::parts::{
    archive_dir::{ArchiveDir, Collected, collect_objects, is_in_bucket, now},
    cluster_store::Url,
    operator::warn,
};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    progress::Progress,
    size::{Size, counted, duration, grouped},
};

/// Frees the space of chunks that no stream needs, also beside a running put
///
/// The verb drops containers without live chunks, and merges those that are less than half full. A
/// chunk that a running put could still use is looked at again when the puts and readers that began
/// before have ended. In an archive with --placement rad the verb encodes chunks by classes when
/// their counts no longer change.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  onefold gc backups\n  onefold gc backups --dry-run\n  onefold gc backups --for 10m --write 50G\n  \
                  onefold gc backups --keep-partial 0 --no-wait\n  \
                  onefold gc backups --wait 2h\n  \
                  onefold gc backups --reseal --write 50G --key vault.key\n  \
                  onefold gc backups --recount"
)]
pub(crate) struct Options {
    /// The store: an archive, or a store of the cluster engine, where gc only finishes deletions
    store: PathBuf,

    /// Time for which chunks of killed puts are kept, so that a repeated put finds them, like 12h or
    /// 2d; a number alone is hours
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = hours)]
    keep_partial: Duration,

    /// Time for which forgotten snapshots are kept, from the first gc that saw them, like 12h or 7d;
    /// a number alone is hours
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = hours)]
    trash: Duration,

    /// Trusts a clock that is 30 days ahead of the newest date in the archive: the time of the trash counts by
    /// it. Without it, forgotten snapshots then stay
    #[arg(long)]
    force: bool,

    /// With --placement rad: encodes all replicated containers, whatever --delay and --batch say;
    /// for archives that get no more versions
    #[arg(long)]
    encode: bool,

    /// Ends after so long, like 10m, also when it waits for puts and readers; the next gc goes on. The step
    /// at hand is finished first
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,

    /// Ends when merging, encoding and resealing have written so much; the next gc goes on
    #[arg(long, value_name = "SIZE")]
    write: Option<Size>,

    /// Counts all references anew, from all streams, volumes and snapshots, before it looks for dead
    /// chunks, and tells how many counts were wrong. Frees what damage of earlier days left counted;
    /// fails when something that names chunks can't be read
    #[arg(long)]
    recount: bool,

    /// In an archive whose keys have roles: drops snapshots of put keys that name what is not there or what
    /// can't be read. Without it, gc ends where it meets one, so that somebody looks
    #[arg(long)]
    drop_untrue: bool,

    /// In an encrypted archive that got another data key: writes again what is left under the older one, and
    /// erases that key when nothing is left. A gc that ends earlier leaves the rest to the next one with this
    /// option; --for and --write bound it. It frees what it wrote
    /// again in steps, while nobody reads that began before, and ends when less than the reserve and 16
    /// containers are free. Copies of the file `keys` from before open no content afterwards: make new ones
    #[arg(long)]
    reseal: bool,

    /// Says what would be freed, and what stays and why, and changes nothing
    #[arg(
        short = 'n',
        long,
        conflicts_with_all = ["time", "write", "encode", "no_wait", "wait", "recount", "drop_untrue", "reseal"]
    )]
    dry_run: bool,

    /// Does not wait for running puts and readers; the next gc frees what they hold back
    #[arg(long)]
    no_wait: bool,

    /// Waits at most so long in all, like 30m, for puts and readers that began before; the next gc frees
    /// what they hold back then
    #[arg(
        long,
        default_value = "30s",
        value_name = "TIME",
        value_parser = humantime::parse_duration,
        conflicts_with = "no_wait"
    )]
    wait: Duration,

    /// Memory for an archive's tables, besides an allowance that grows with the bytes that they
    /// occupy
    #[arg(long, default_value = "64M", value_name = "SIZE")]
    memory: Size,

    /// Prints JSON, whose keys are stable
    #[arg(long)]
    json: bool,
}

/// Why forgotten snapshots stay when the clock is doubted, and what to do.
pub(in crate::verbs) const CLOCK_AHEAD: &str = "all dates in the archive are more than 30 days old by this host's \
     clock; if the clock is right and the archive lay unused, `onefold gc --force` trusts it, and --trash 0 gives \
     up what was forgotten whatever the clock says";

/// A time; a number alone is hours.
fn hours(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(hours) => Ok(Duration::from_secs(hours.saturating_mul(3600))),
        Err(_) => period(text),
    }
}

/// The outcome.
#[derive(Debug, Serialize)]
struct Done {
    /// Forgotten snapshots that are gone.
    expired_snapshots: u64,
    /// Containers of domains that were erased, and their space; what is held back counts, and is freed
    /// later.
    erased_containers: u64,
    erased_bytes: u64,
    dropped_containers: u64,
    merged_containers: u64,
    new_containers: u64,
    copied_chunks: u64,
    /// Bytes of the chunks that merges encoded again, before compression; and what they wrote,
    /// with parity.
    copied_chunk_bytes: u64,
    merge_written_bytes: u64,
    /// Containers that stood replicated and were encoded by classes, with --placement rad.
    encoded_containers: u64,
    encoded_into_containers: u64,
    encoded_chunks: u64,
    encoded_chunk_bytes: u64,
    encode_written_bytes: u64,
    /// Containers under an older data key that were written again, with --reseal; those that are left; and the
    /// older keys that were erased.
    resealed_containers: u64,
    resealed_into_containers: u64,
    resealed_chunks: u64,
    resealed_bytes: u64,
    under_older_key_containers: u64,
    /// There was no room to write more again.
    reseal_without_room: bool,
    erased_data_keys: u64,
    /// Bytes that stand replicated now, with their copies.
    replicated_bytes: u64,
    freed_bytes: u64,
    /// Space of the containers that were dropped, and space that merging gained; what is held back
    /// counts, and is freed later.
    dropped_bytes: u64,
    merged_bytes: u64,
    /// Containers that stay although they are less than half full, because a chunk of theirs is
    /// damaged.
    damaged_containers: u64,
    /// Of put keys: containers that were read and are what they say, those that are not, and snapshots that
    /// were dropped by --drop-untrue.
    proven_containers: u64,
    untrue_containers: u64,
    untrue_snapshots: u64,
    /// References of snapshots to pages that are not there, among those that were counted.
    absent_pages: u64,
    /// True when running puts or readers hold something back.
    held_back: bool,
    /// True when the budget ended before all was done.
    cut_short: bool,
    /// With --recount; nothing when the budget ended before.
    recounted: Option<Recounted>,
    /// Forgotten snapshots whose time is not over.
    in_trash: u64,
    /// Free bytes of the file system, before and after.
    free_bytes_before: u64,
    free_bytes_after: u64,
    /// What nothing needs and is not freed; nothing when the budget ended before that was counted.
    left: Option<Left>,
    /// Objects of an archive in a bucket; nothing for others.
    objects: Option<Objects>,
}

/// What became of objects that nothing in an archive needs.
#[derive(Debug, Serialize)]
struct Objects {
    /// Objects that were deleted, those of killed processes too, and the bytes of those that the archive had.
    deleted: u64,
    deleted_bytes: u64,
    /// Objects that a later gc deletes.
    waiting: u64,
    waiting_bytes: u64,
    /// Bytes that were written again, since most of their object was not needed.
    rewritten_bytes: u64,
    /// Objects that stay although most of them is not needed: they can't be read, or are damaged.
    damaged: u64,
}

impl Objects {
    fn new(collected: Collected) -> Objects {
        tracing::debug!("{} objects that no frame names were deleted", collected.orphans);
        Objects {
            deleted: collected.deleted.0 + collected.orphans,
            deleted_bytes: collected.deleted.1,
            waiting: collected.waiting.0,
            waiting_bytes: collected.waiting.1,
            rewritten_bytes: collected.rewritten,
            damaged: collected.damaged,
        }
    }

    fn tell(&self) {
        let objects = |n| counted(n, "object");
        let (deleted, bytes) = (objects(self.deleted), Size(self.deleted_bytes));
        output::line(format_args!("deleted {deleted}: {bytes}"));
        if self.waiting > 0 {
            output::line(format_args!(
                "{} of {} will be deleted by a gc after a day, when nobody reads any more what was",
                objects(self.waiting),
                Size(self.waiting_bytes)
            ));
        }
    }
}

/// Usage counts that were wrong.
#[derive(Debug, Serialize)]
struct Recounted {
    chunks: u64,
    too_low: u64,
    too_high: u64,
    /// The first thousand containers of each.
    too_low_containers: Vec<u64>,
    too_high_containers: Vec<u64>,
}

impl Recounted {
    fn new(found: &CountsFound) -> Recounted {
        let ids = |of: &Miscounted| of.containers.iter().map(|(id, _)| id.0).collect();
        Recounted {
            chunks: found.compared,
            too_low: found.too_low.chunks,
            too_high: found.too_high.chunks,
            too_low_containers: ids(&found.too_low),
            too_high_containers: ids(&found.too_high),
        }
    }

    fn tell(&self) {
        let chunks = counted(self.chunks, "chunk");
        if self.too_low + self.too_high == 0 {
            output::line(format_args!(
                "counted all references anew: the counts of {chunks} were right"
            ));
            return;
        }
        output::line(format_args!(
            "counted all references anew: of {chunks}, the counts of {} were too low and of {} too high",
            grouped(self.too_low),
            grouped(self.too_high)
        ));
        for (what, ids) in [("low", &self.too_low_containers), ("high", &self.too_high_containers)]
        {
            let shown: Vec<String> = ids.iter().take(SHOWN).map(ToString::to_string).collect();
            let more = if ids.len() > SHOWN { ", …" } else { "" };
            if !ids.is_empty() {
                output::line(format_args!("too {what} in containers {}{more}", shown.join(", ")));
            }
        }
    }
}

/// Containers that are told of in text.
const SHOWN: usize = 10;

/// What a collection would do.
#[derive(Debug, Serialize)]
struct Plan {
    /// Free bytes of the file system.
    free_bytes: u64,
    #[serde(flatten)]
    left: Left,
}

/// Collects, and tells what was freed.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let directory = match Found::at(&options.store)? {
        Found::Archive(directory) => directory,
        Found::Cluster(url) => return finish(&url, Answer { json: options.json }),
        other => {
            let why = "it frees space as soon as nothing names it, and needs no gc";
            return Err(refused(&options.store, &other, why));
        }
    };
    let collect = Collect {
        now: now(),
        keep_partial: options.keep_partial.as_secs(),
        trash: options.trash.as_secs(),
        wait: !options.no_wait,
        reserve_bytes: match is_in_bucket(&directory) {
            true => 0,
            false => Format::new([0; 16], [0; 32], [0; 16]).reserve_bytes,
        },
        encode_all: options.encode,
        doubts_clock: !options.force,
    };
    let free = || directory.free_bytes();
    if options.dry_run {
        return plan(&directory, collect, options, free()?);
    }
    let archive = directory.open(Settings { memory: options.memory.0, ..Settings::default() })?;
    if options.encode && archive.label().late.is_none() {
        return Err(Failure::new(
            "--encode is for archives with --placement rad: in others nothing stands replicated",
        ));
    }
    let begun = Instant::now();
    let (bar, mut shown) = (Progress::of("gc", "pieces"), Shown::default());
    let free_before = free()?;
    let mut collection = Collection::begin(&archive, collect)?;
    if options.recount {
        collection.recount();
    }
    if options.drop_untrue {
        collection.drop_untrue();
    }
    if options.reseal {
        let looked_at = directory.clone();
        collection.reseal(Some(Box::new(move || looked_at.free_bytes())));
    }
    let over = options.time.map(|time| begun + time);
    let mut others = Others {
        directory: directory.clone(),
        over,
        left: options.wait,
        since: None,
        told: Vec::new(),
    };
    collection.wait_with(Box::new(move || others.wait()));
    shown.show(&bar, &collection);
    while collection.step()? {
        collection.tick(now());
        let over = options.time.is_some_and(|time| begun.elapsed() >= time);
        if over || options.write.is_some_and(|most| collection.written() >= most.0) {
            collection.cut_short();
        }
        shown.show(&bar, &collection);
    }
    let done = collection.done;
    if done.clock_ahead {
        warn(&format!("the trash stays: {CLOCK_AHEAD}"));
    }
    let recounted = collection.recounted.as_ref().map(Recounted::new);
    // What a budget cut short is not counted beyond it, unless the counts are there.
    let left = if done.cut_short && !archive.tables().differences.is_empty() {
        None
    } else {
        bar.stage("counting what is left");
        let collect = Collect { now: now(), ..collect };
        Some(Left::in_archive(&directory, &archive, collect, done.clock_ahead)?)
    };
    drop(bar);
    let done = Done {
        expired_snapshots: done.expired,
        erased_containers: done.erased,
        erased_bytes: done.erased_bytes,
        dropped_containers: done.dropped,
        merged_containers: done.merged,
        new_containers: done.into,
        copied_chunks: done.copied_chunks,
        copied_chunk_bytes: done.copied_chunk_bytes,
        merge_written_bytes: done.merge_bytes,
        encoded_containers: done.encoded,
        encoded_into_containers: done.encoded_into,
        encoded_chunks: done.encoded_chunks,
        encoded_chunk_bytes: done.encoded_chunk_bytes,
        encode_written_bytes: done.encode_bytes,
        resealed_containers: done.resealed,
        resealed_into_containers: done.resealed_into,
        resealed_chunks: done.resealed_chunks,
        resealed_bytes: done.resealed_bytes,
        under_older_key_containers: done.under_older,
        reseal_without_room: done.no_room,
        erased_data_keys: done.keys_erased,
        replicated_bytes: archive.refresh()?.sums().replicated().0,
        freed_bytes: done.freed_bytes,
        dropped_bytes: done.dropped_bytes,
        merged_bytes: done.merged_bytes,
        damaged_containers: done.damaged,
        proven_containers: done.proven,
        untrue_containers: done.untrue,
        untrue_snapshots: done.untrue_snapshots,
        absent_pages: done.absent,
        held_back: done.waits || done.held_back > 0,
        cut_short: done.cut_short,
        recounted,
        in_trash: archive.tables().snapshots.forgotten().count() as u64,
        free_bytes_before: free_before,
        free_bytes_after: free()?,
        left,
        objects: None,
    };
    // What the collection of the archive did is told, whatever becomes of its objects.
    let collected = collect_objects(&directory);
    let objects = collected.as_ref().ok().copied().flatten().map(Objects::new);
    if let Some(damaged) = objects.as_ref().map(|objects| objects.damaged).filter(|n| *n > 0) {
        let objects = counted(damaged, "object");
        warn(&format!(
            "{objects} can't be read or are damaged, and stay: `onefold scrub` tells what lies in them"
        ));
    }
    let done = Done { objects, ..done };
    if options.json {
        output::json(&done)?;
    } else {
        done.tell(options, archive.label().late.is_some(), directory.path());
        done.objects.iter().for_each(Objects::tell);
    }
    collected?;
    Ok(())
}

/// Between two looks for the end of those that are waited for.
const WAIT: Duration = Duration::from_millis(20);

/// How long they are waited for in silence.
const SILENT: Duration = Duration::from_secs(3);

/// Puts and readers that began before the collection, which waits for them.
struct Others {
    directory: ArchiveDir,
    /// When the collection ends in any case.
    over: Option<Instant>,
    /// How long they are still waited for. Whoever may read can keep a reader's lock as long as he likes.
    left: Duration,
    /// The beginning and the end of the last wait.
    since: Option<(Instant, Instant)>,
    /// The processes that were named.
    told: Vec<u32>,
}

impl Others {
    /// Lets a moment pass, and says who is waited for when that takes longer; false at the end of the
    /// budget, and when they were waited for long enough.
    fn wait(&mut self) -> bool {
        let begun = Instant::now();
        std::thread::sleep(WAIT.min(self.left));
        let now = Instant::now();
        self.left = self.left.saturating_sub(now.duration_since(begun));
        // The time between two waits is work.
        let goes_on = |(_, last): &(Instant, Instant)| now.duration_since(*last) < SILENT;
        let (first, _) = self.since.filter(goes_on).unwrap_or((now, now));
        self.since = Some((first, now));
        if now.duration_since(first) >= SILENT {
            self.since = Some((now, now));
            self.tell();
        }
        !self.left.is_zero() && self.over.is_none_or(|over| now < over)
    }

    fn tell(&mut self) {
        let users = self.directory.users();
        if users.iter().all(|(pid, _)| self.told.contains(pid)) && !self.told.is_empty() {
            return;
        }
        let named = users.iter().map(|(pid, command)| format!("process {pid} ({command})"));
        let named = match users.is_empty() {
            true => "others that use the archive".to_owned(),
            false => named.collect::<Vec<_>>().join(", "),
        };
        warn(&format!(
            "waiting at most {} more until those that began before have ended, among {named}: then what \
             they hold back is left to the next gc (--wait, --no-wait)",
            duration(self.left.as_secs().max(1))
        ));
        self.told = users.into_iter().map(|(pid, _)| pid).chain([0]).collect();
    }
}

/// How far the present step of a collection is.
#[derive(Default)]
struct Shown {
    doing: &'static str,
    /// The most that was left of it.
    most: u64,
}

impl Shown {
    fn show(&mut self, bar: &Progress, collection: &Collection) {
        let (doing, left) = (collection.doing(), collection.left().unwrap_or(0));
        let before = if doing == self.doing { self.most } else { 0 };
        *self = Shown { doing, most: before.max(left) };
        bar.stage(doing);
        bar.set(self.most - left, self.most);
    }
}

/// Says what a collection would do, and changes nothing.
fn plan(
    directory: &ArchiveDir,
    collect: Collect,
    options: &Options,
    free_bytes: u64,
) -> Result<(), Failure> {
    let archive = directory.open_to_read(options.memory.0)?;
    let may_doubt = collect.doubts_clock && collect.trash > 0;
    let is_ahead = may_doubt && is_clock_ahead(&archive.tables(), collect.now);
    if is_ahead {
        warn(&format!("the trash stays: {CLOCK_AHEAD}"));
    }
    let left = Left::in_archive(directory, &archive, collect, is_ahead)?;
    let plan = Plan { free_bytes, left };
    if options.json {
        return output::json(&plan);
    }
    plan.left.tell_plan();
    output::line(format_args!("free on the disk: {}", Size(free_bytes)));
    Ok(())
}

impl Done {
    /// The work of --reseal, and its rest.
    fn tell_resealed(&self) {
        let containers = |n| counted(n, "container");
        if self.resealed_containers > 0 {
            output::line(format_args!(
                "sealed {} with {} by the newest data key: wrote {}",
                containers(self.resealed_containers),
                counted(self.resealed_chunks, "chunk"),
                Size(self.resealed_bytes)
            ));
        }
        match (self.erased_data_keys, self.under_older_key_containers) {
            (0, 0) if self.resealed_containers == 0 && !self.held_back => {
                output::line("nothing is under an older data key")
            }
            (0, 0) => output::line(
                "nothing is left under the older data key, which is erased by the next gc --reseal, when \
                 nobody reads any more what was",
            ),
            (0, left) => {
                let left = containers(left);
                let why = if self.reseal_without_room {
                    "there is no room to write more again without the reserve; when more is free, another gc \
                     --reseal goes on"
                } else if self.damaged_containers > 0 {
                    "those with a damaged chunk stay until they are repaired; `onefold scrub` names them, and \
                     another gc --reseal goes on"
                } else {
                    "another gc --reseal goes on"
                };
                output::line(format_args!("{left} left under the older data key: {why}"))
            }
            (erased, _) => output::line(format_args!(
                "erased {}: nothing was under it any more. Copies of `keys` from before open nothing of the \
                 archive's content: make new ones",
                counted(erased, "older data key")
            )),
        }
    }

    fn tell(&self, options: &Options, late: bool, path: &Path) {
        let done = self;
        let dropped = counted(done.dropped_containers, "container");
        let merged = match done.merged_containers {
            0 => String::new(),
            n => format!(", {} merged into {}", grouped(n), grouped(done.new_containers)),
        };
        match (done.freed_bytes, done.dropped_containers, done.merged_containers) {
            (0, 0, 0) => {
                output::line("freed nothing: no container has enough in it that is out of use")
            }
            _ => output::line(format_args!(
                "freed {}: {dropped} dropped{merged}",
                Size(done.freed_bytes)
            )),
        }
        if done.erased_containers > 0 {
            output::line(format_args!(
                "dropped {} of domains that were erased: {}",
                counted(done.erased_containers, "container"),
                Size(done.erased_bytes)
            ));
        }
        if done.proven_containers + done.untrue_containers > 0 {
            output::line(format_args!(
                "read {} of put keys: {} not what they say{}",
                counted(done.proven_containers + done.untrue_containers, "container"),
                grouped(done.untrue_containers),
                match done.untrue_snapshots {
                    0 => String::new(),
                    n => format!("; {} dropped", counted(n, "snapshot")),
                }
            ));
        }
        if let Some(recounted) = &done.recounted {
            recounted.tell();
        }
        if done.copied_chunks > 0 {
            let (chunks, written) =
                (counted(done.copied_chunks, "chunk"), Size(done.merge_written_bytes));
            output::line(format_args!("merging encoded {chunks} again, and wrote {written}"));
        }
        if options.reseal {
            self.tell_resealed();
        }
        if late {
            output::line(format_args!(
                "encoded {} with {}, and wrote {}; {} remain replicated",
                counted(done.encoded_containers, "container"),
                counted(done.encoded_chunks, "chunk"),
                Size(done.encode_written_bytes),
                Size(done.replicated_bytes)
            ));
        }
        match &done.left {
            Some(left) => left.tell(),
            None if done.in_trash > 0 => output::line(format_args!(
                "note: {} kept for {} from when a gc saw them, with all that they alone name; \
             --trash 0 gives it up now",
                counted(done.in_trash, "forgotten snapshot"),
                duration(options.trash.as_secs())
            )),
            None => {}
        }
        // A bucket has no end that anybody knows.
        if done.free_bytes_after < u64::MAX / 4 {
            output::line(format_args!(
                "free on the disk: {}; before: {}",
                Size(done.free_bytes_after),
                Size(done.free_bytes_before)
            ));
        }
        if done.cut_short {
            output::line("note: the budget ended before all was done; another gc goes on");
        }
        if done.held_back {
            output::line(
                "note: running puts or readers hold more back; another gc frees it when they have \
             ended",
            );
        }
        if done.damaged_containers > 0 {
            let shown = path.display();
            output::line(format_args!(
                "note: {} not merged, because data in it is damaged; `onefold scrub {shown}` tells \
             which streams it hits",
                counted(done.damaged_containers, "container")
            ));
        }
        if done.absent_pages > 0 {
            let shown = path.display();
            output::line(format_args!(
                "note: snapshots name {} that the archive does not have; `onefold check {shown}` tells \
                 which are damaged",
                counted(done.absent_pages, "page")
            ));
        }
    }
}

/// A store of the cluster engine frees what nothing names by its workers; deletions that a killed
/// session left are finished here.
fn finish(store: &Url, answer: Answer) -> Result<(), Failure> {
    let steps = cluster::finish_deletions(store)?;
    answer.tell(
        &json!({ "deletion_steps": steps }),
        format_args!("finished deletions in {}", counted(steps, "step")),
    )
}
