//! What nothing needs in an archive and is not freed: how much, and why.

use onefold::parts::archive_dir::{ArchiveDir, now};
use onefold_archive::{Archive, CollectionOptions, Survey, survey};
use onefold_core::Result;
use serde::Serialize;
use std::sync::Arc;

use crate::verbs::snapshots::shown;
use onefold_console::{
    output,
    size::{Size, counted, duration},
};

/// Bytes that nothing needs. All of them are on one copy, without parity.
#[derive(Debug, Serialize)]
pub(super) struct Left {
    /// Chunks that no stream, volume or snapshot names, those in the trash included.
    dead_bytes: u64,
    /// Of them in containers with no other chunk: freed without a write.
    droppable_bytes: u64,
    /// Of them in containers that are less than half full: freed by merging, which writes so much.
    mergeable_bytes: u64,
    merge_write_bytes: u64,
    /// Space that is to be freed when those who may read it have ended.
    waiting_bytes: u64,
    /// Containers of puts that run or were killed, kept for a repeated one. What is named of them
    /// counts too.
    unfinished_bytes: u64,
    erased_bytes: u64,
    /// Forgotten snapshots, and what only they name; when the first and the last of them go.
    trash_snapshots: u64,
    trash_bytes: u64,
    trash_from: Option<u64>,
    trash_until: Option<u64>,
    /// Processes that read or put: what they may need is freed later.
    holders: Vec<Holder>,
}

/// A process that holds something back.
#[derive(Debug, Serialize)]
struct Holder {
    pid: u32,
    command: String,
}

impl Left {
    /// Looks; writes nothing. With `clock_ahead` no clock ends the time of the trash.
    pub(super) fn in_archive(
        directory: &ArchiveDir,
        archive: &Arc<Archive>,
        options: CollectionOptions,
        clock_ahead: bool,
    ) -> Result<Left> {
        let is_forever = clock_ahead && options.trash > 0;
        let trash = if is_forever { u64::MAX } else { options.trash };
        let options = CollectionOptions { trash, ..options };
        let holders = directory.users().into_iter().map(|(pid, command)| Holder { pid, command });
        let holders = holders.collect();
        let Survey {
            dead_bytes,
            droppable_bytes,
            mergeable_bytes,
            merge_writes_bytes: merge_write_bytes,
            waiting_bytes,
            unfinished_bytes,
            erased_bytes,
            trash,
        } = survey(archive, options)?;
        // Nobody knows when they go while the clock is doubted.
        let until = |at| (trash.snapshots > 0 && !clock_ahead).then_some(at);
        Ok(Left {
            dead_bytes,
            droppable_bytes,
            mergeable_bytes,
            merge_write_bytes,
            waiting_bytes,
            unfinished_bytes,
            erased_bytes,
            trash_snapshots: trash.snapshots,
            trash_bytes: trash.bytes,
            trash_from: until(trash.until.0),
            trash_until: until(trash.until.1),
            holders,
        })
    }

    /// What a collection would do now.
    pub(super) fn tell_plan(&self) {
        output::line(format_args!("dead: {} that nothing names any more", Size(self.dead_bytes)));
        output::line(format_args!(
            "would free {} by dropping containers in which all is dead",
            Size(self.droppable_bytes)
        ));
        if self.erased_bytes > 0 {
            output::line(format_args!(
                "would free {} of domains that were erased",
                Size(self.erased_bytes)
            ));
        }
        output::line(format_args!(
            "would free {} by merging containers that are less than half full, which writes {}",
            Size(self.mergeable_bytes),
            Size(self.merge_write_bytes)
        ));
        self.tell();
    }

    /// What stays, and why.
    pub(super) fn tell(&self) {
        let freeable = self.droppable_bytes + self.mergeable_bytes;
        let scattered = self.dead_bytes.saturating_sub(freeable);
        if scattered > 0 {
            output::line(format_args!(
                "stays: {} dead in containers that are half full or more, until more of them is \
                 dead",
                Size(scattered)
            ));
        }
        if let (Some(from), Some(until)) = (self.trash_from, self.trash_until) {
            let first = if from == until { String::new() } else { format!("{} to ", shown(from)) };
            output::line(format_args!(
                "in the trash: {}, with {} that nothing else names, until {first}{} (in {}); `undelete` \
                 brings back what is there, and `gc --trash 0` gives it up now",
                counted(self.trash_snapshots, "forgotten snapshot"),
                Size(self.trash_bytes),
                shown(until),
                duration(until.saturating_sub(now()))
            ));
        }
        if self.trash_snapshots > 0 && self.trash_from.is_none() {
            output::line(format_args!(
                "in the trash: {}, with {} that nothing else names, for as long as the clock is doubted; \
                 `undelete` brings back what is there",
                counted(self.trash_snapshots, "forgotten snapshot"),
                Size(self.trash_bytes)
            ));
        }
        if self.unfinished_bytes > 0 {
            output::line(format_args!(
                "kept for puts that run or are repeated: {} of containers, with what is in use of \
                 them, for the time of --keep-partial",
                Size(self.unfinished_bytes)
            ));
        }
        if self.waiting_bytes > 0 {
            output::line(format_args!(
                "held back: {} that somebody may still read",
                Size(self.waiting_bytes)
            ));
        }
        let held = self.waiting_bytes > 0 || freeable > 0;
        for Holder { pid, command } in self.holders.iter().filter(|_| held) {
            output::line(format_args!(
                "holds back: process {pid} ({command}); what it may need is freed when it has ended"
            ));
        }
    }
}
