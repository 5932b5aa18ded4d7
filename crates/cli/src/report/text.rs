//! A report for people: aligned lines, each beginning with what it is about.

use std::fmt::{self, Display, Formatter};

use super::{BLOCK, HeldSpace, Report, Server, Snapshots, Witness};
use onefold::parts::control::VolumeLine;
use onefold_console::{
    failure::one_line,
    size::{Size, counted, duration, grouped, share},
};

/// Width of the first column.
const LABEL: usize = 15;

fn row(f: &mut Formatter<'_>, label: &str, text: impl Display) -> fmt::Result {
    writeln!(f, "{label:<LABEL$}{text}")
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        row(f, "store", format_args!("{}  (id {})", self.store, self.id))?;
        let created = &self.created;
        row(
            f,
            "created",
            format_args!(
                "scheme {}, fingerprint {}, verify {}, leftover {}, layout {}",
                created.scheme,
                created.fingerprint,
                created.verify,
                created.leftover,
                created.layout
            ),
        )?;
        let encryption = if self.encrypted { "encrypted (experimental)" } else { "not encrypted" };
        row(f, "encryption", encryption)?;
        row(f, "state", self.state())?;
        if let Some(reason) = &self.stopped {
            row(f, "STOPPED", reason)?;
        }
        self.space(f)?;
        let waiting = &self.uncommitted;
        // The most depends on the memory of the process: only a server's counts.
        let of = |most: u64| match self.server {
            Some(_) => format!(" of {}", grouped(most)),
            None => String::new(),
        };
        row(
            f,
            "uncommitted",
            format_args!(
                "{}{} records, {}{} zones wait for a checkpoint{}",
                grouped(waiting.records),
                of(waiting.records_max),
                waiting.zones,
                of(waiting.zones_max),
                match self.uncommitted.delayed_leaves {
                    0 => String::new(),
                    leaves => format!(", {} leaves for another write of theirs", grouped(leaves)),
                }
            ),
        )?;
        if let Some(server) = &self.server {
            server.rows(f)?;
        }
        self.domains(f)?;
        if self.snapshots > 0 {
            row(f, "snapshots", grouped(self.snapshots))?;
            self.maps.rows(f)?;
        }
        for receive in &self.receives {
            row(f, "receiving", super::receiving::shown(receive))?;
        }
        match self.volumes.len() {
            0 => row(f, "volumes", "none"),
            n => {
                row(f, "volumes", n)?;
                volume_table(
                    f,
                    self.volumes.iter().map(|volume| (volume.name.as_str(), volume.bytes)),
                )?;
                for volume in &self.volumes {
                    let (Some(quota), Some(taken)) = (volume.quota_bytes, charged(volume)) else {
                        continue;
                    };
                    let reached = volume.charged_bytes.is_some_and(|bytes| bytes >= quota);
                    writeln!(
                        f,
                        "  '{}' {taken}{}",
                        volume.name.escape_debug(),
                        if reached { ": new data is refused" } else { "" }
                    )?;
                }
                for volume in self.volumes.iter().filter(|volume| volume.erased) {
                    writeln!(
                        f,
                        "  '{}' can't be read: its domain, {}, was erased",
                        volume.name.escape_debug(),
                        volume.domain
                    )?;
                }
                for volume in self.volumes.iter().filter(|volume| volume.lost_bytes > 0) {
                    writeln!(
                        f,
                        "  {} of '{}' were lost before: they read as errors until they are written or \
                         trimmed",
                        Size(volume.lost_bytes),
                        volume.name.escape_debug()
                    )?;
                }
                Ok(())
            }
        }
    }
}

/// Names and sizes in two columns.
fn volume_table<'a>(
    f: &mut Formatter<'_>,
    volumes: impl Iterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    for (name, bytes) in volumes {
        writeln!(f, "  {:>9}  {}", Size(bytes).to_string(), name.escape_debug())?;
    }
    Ok(())
}

impl Report {
    fn state(&self) -> String {
        match (&self.server, self.clean) {
            (Some(server), _) => format!(
                "served by process {} for {}, {} persistence, at {}",
                server.pid,
                duration(server.uptime_seconds),
                server.persistence,
                server.listeners.join(" and ")
            ),
            (None, Some(false)) => {
                "not served; was not closed in order, and will recover when it is opened".to_owned()
            }
            (None, _) => "not served; closed in order".to_owned(),
        }
    }

    /// The domains with limits.
    fn domains(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for domain in &self.domains {
            let stored =
                domain.stored_bytes.map_or("?".to_owned(), |bytes| Size(bytes).to_string());
            let quota = domain.quota_bytes.map(|bytes| format!(" of its quota of {}", Size(bytes)));
            let reached = domain
                .quota_bytes
                .is_some_and(|most| domain.stored_bytes.is_some_and(|now| now >= most));
            let kept = domain.reserve_bytes.map(|bytes| format!(", {} are reserved", Size(bytes)));
            row(
                f,
                "domain",
                format_args!(
                    "'{}' stores {stored}{}{}{}",
                    domain.name.escape_debug(),
                    quota.unwrap_or_default(),
                    if reached { ": new data is refused" } else { "" },
                    kept.unwrap_or_default(),
                ),
            )?;
        }
        Ok(())
    }

    fn space(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let space = &self.space;
        let used = space.usable_bytes.saturating_sub(space.free_bytes);
        row(
            f,
            "space",
            format_args!(
                "{} of {} free ({} used or reserved), tables {}",
                Size(space.free_bytes),
                Size(space.usable_bytes),
                share(used, space.usable_bytes),
                Size(space.table_bytes)
            ),
        )?;
        if space.mapped_bytes == 0 {
            return self.rest_of_space(f);
        }
        row(
            f,
            "saved",
            format_args!(
                "{} in volumes are stored in {}: {} saved, {:.2} times less",
                Size(space.mapped_bytes),
                Size(space.stored_bytes),
                Size(space.saved_bytes),
                space.ratio
            ),
        )?;
        self.rest_of_space(f)
    }

    fn rest_of_space(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let space = &self.space;
        if space.pack_bytes > 0 {
            row(
                f,
                "packed",
                format_args!(
                    "{} that lay still are packed into {}",
                    Size(space.packed_bytes),
                    Size(space.pack_bytes)
                ),
            )?;
        }
        if space.pending_bytes > 0 {
            row(
                f,
                "to come",
                format_args!(
                    "dropped ranges of up to {} are still to be freed",
                    Size(space.pending_bytes)
                ),
            )?;
        }
        if space.kept_bytes > 0 {
            row(f, "kept", format_args!("{} for reserves of domains", Size(space.kept_bytes)))?;
        }
        if self.inexact {
            let what = "a page of an old snapshot can't be read, and space stays taken: run onefold repair";
            row(f, "DAMAGED", what)?;
        }
        if self.orphan_pages > 0 {
            let what = format!(
                "{} of deleted snapshots wait to be handed over",
                counted(self.orphan_pages, "map page")
            );
            row(f, "to come", what)?;
        }
        if self.freeing {
            row(f, "to come", "what deleted volumes and snapshots held is being freed")?;
        }
        if let Some(host) = space.host_bytes {
            let left = space.host_free_bytes.map_or_else(String::new, |free| {
                format!(", {} free on its file system", Size(free))
            });
            row(f, "host", format_args!("{} taken by the file{left}", Size(host)))?;
        }
        Ok(())
    }
}

impl Snapshots {
    /// The space that only snapshots hold, as far as anybody has looked.
    fn rows(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(HeldSpace { age_seconds, leaving_bytes, orphan_bytes, .. }) = self.space.clone()
        else {
            return Ok(());
        };
        let alone: u64 = self.snapshots.iter().filter_map(|one| one.exclusive_bytes).sum();
        let age = duration(age_seconds);
        row(
            f,
            "",
            format_args!(
                "{} held by one of them alone, {} by deleted ones, as of {age} ago",
                Size(alone),
                Size(leaving_bytes.saturating_add(orphan_bytes))
            ),
        )
    }
}

impl Display for Witness {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.told_state, self.told_seconds) {
            (Some(state), Some(ago)) => write!(f, "told of state {state} {} ago", duration(ago))?,
            _ => f.write_str("not told of any state yet")?,
        }
        match &self.failure {
            Some(why) => {
                let behind = duration(self.behind_seconds);
                write!(f, "; it does not know the newest one, for {behind}: {}", one_line(why))
            }
            None => Ok(()),
        }
    }
}

impl Server {
    fn rows(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let writes = &self.writes;
        let blocks = |n: u64| Size(n * BLOCK);
        let rate = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.2}"));
        row(
            f,
            "written",
            format_args!(
                "{} by clients, {} to the device: amplification {}",
                blocks(writes.client_blocks),
                blocks(writes.device_blocks),
                rate(writes.amplification)
            ),
        )?;
        row(
            f,
            "duplicates",
            format_args!(
                "{} ({}), zeroes {} ({})",
                blocks(writes.duplicate_blocks),
                share(writes.duplicate_blocks, writes.client_blocks),
                blocks(writes.zero_blocks),
                share(writes.zero_blocks, writes.client_blocks)
            ),
        )?;
        row(
            f,
            "windows",
            format_args!(
                "{}, on average of {} blocks; flushes {}, durable writes {}, checkpoints {}",
                grouped(writes.windows),
                rate(writes.blocks_per_window),
                grouped(writes.flushes),
                grouped(writes.durable_writes),
                grouped(writes.checkpoints)
            ),
        )?;
        row(
            f,
            "records",
            format_args!(
                "{}, {} hidden beside compressed blocks",
                grouped(writes.records),
                share(writes.hidden_records, writes.records)
            ),
        )?;
        row(
            f,
            "device writes",
            format_args!(
                "data {}, carriers {} ({} of records alone), tables {}, leftover {}, lists {}",
                blocks(writes.data_blocks),
                blocks(writes.carrier_blocks),
                blocks(writes.record_blocks),
                blocks(writes.checkpoint_blocks),
                blocks(writes.leftover_blocks),
                blocks(writes.list_blocks + writes.super_blocks)
            ),
        )?;
        if writes.in_place_blocks > 0 {
            let merged = writes.in_place_changes.saturating_sub(writes.in_place_blocks);
            row(
                f,
                "in place",
                format_args!(
                    "{} in {} leaves, {} changes merged; {} for delayed changes alone",
                    blocks(writes.in_place_blocks),
                    grouped(writes.in_place_blocks),
                    grouped(merged),
                    grouped(writes.delayed_blocks)
                ),
            )?;
        }
        row(f, "read", format_args!("{} by clients", blocks(self.reads.client_blocks)))?;
        if let Some(witness) = &self.witness {
            row(f, "witness", witness)?;
        }
        let cache = &self.page_cache;
        row(
            f,
            "page cache",
            format_args!(
                "{} hits of {}",
                share(cache.hits, cache.hits + cache.misses),
                grouped(cache.hits + cache.misses)
            ),
        )?;
        let index = &self.index;
        let state = match (index.complete, index.refused) {
            (true, 0) => "complete".to_owned(),
            (false, 0) => "still being completed".to_owned(),
            (_, refused) => format!("{} found no room", grouped(refused)),
        };
        row(f, "index", format_args!("{} fingerprints, {state}", grouped(index.entries)))?;
        let memory = &self.memory;
        row(
            f,
            "memory",
            format_args!(
                "{} of {} in use, process {} (at most {})",
                Size(memory.engine_bytes),
                Size(memory.limit_bytes),
                Size(memory.resident_bytes),
                Size(memory.peak_bytes)
            ),
        )?;
        let nbd = &self.nbd;
        row(
            f,
            "clients",
            format_args!(
                "{} connected, {} requests under way, {} answered with an error",
                nbd.connections,
                nbd.in_flight,
                grouped(nbd.errors)
            ),
        )
    }
}

/// What the quota of a volume charges, in words; `None` without a quota.
pub(crate) fn charged(volume: &VolumeLine) -> Option<String> {
    let quota = Size(volume.quota_bytes?);
    let Some(charged) = volume.charged_bytes else {
        return Some(format!("has taken ? of its quota of {quota}"));
    };
    let pages = match charged.saturating_sub(volume.mapped_bytes.unwrap_or(charged)) {
        0 => String::new(),
        bytes => format!(", {} of it for pages of its map", Size(bytes)),
    };
    Some(format!("has taken {} of its quota of {quota}{pages}", Size(charged)))
}
