//! The listing of a tree, read in passes: it may be longer than memory.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::Scope,
};

use onefold_archive::{
    Archive, Content, ENTRY_BYTES_MAX, Links, Order, Reader, Stream, Verify, decode_listing,
};
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};

use crate::verbs::{named, snapshots};
use onefold_console::{output, size::Size};
use serde_json::json;

/// Reads a listing once, some entries at a time. Their order is checked each time: what holds the
/// archive may answer differently the next time.
pub(crate) fn pass(
    reader: &mut Reader,
    stream: &Stream,
    each: &mut dyn FnMut(Vec<Entry>) -> Result<()>,
) -> Result<()> {
    let (mut held, mut order) = (Vec::new(), Order::default());
    reader.read(&stream.listing, Verify::Groups, &mut |content| {
        match content {
            Content::Bytes(bytes) => held.extend_from_slice(bytes),
            Content::Zeroes(n) | Content::Hole(n) => {
                let n = usize::try_from(n).ok().filter(|&n| n <= ENTRY_BYTES_MAX);
                let n = n.ok_or_else(|| {
                    Error::new(Kind::Corrupt, "the listing of a tree can't be zeroes")
                })?;
                held.resize(held.len() + n, 0);
            }
        }
        let mut entries = Vec::new();
        decode_listing(&mut held, &mut |entry| {
            order.next(&entry)?;
            entries.push(entry);
            Ok(())
        })?;
        each(entries)
    })?;
    if held.is_empty() {
        Ok(())
    } else {
        Err(Error::new(Kind::Corrupt, "the listing of a tree ends too early"))
    }
}

/// Checks a whole listing: that it is one that a walk can give, and that hard links name what came
/// before. `also` looks at each entry once.
pub(super) fn check(
    reader: &mut Reader,
    stream: &Stream,
    also: &mut dyn FnMut(&Entry) -> Result<()>,
) -> Result<()> {
    let (mut links, mut is_first) = (Links::default(), true);
    loop {
        pass(reader, stream, &mut |entries| {
            entries.iter().try_for_each(|entry| {
                if is_first {
                    also(entry)?;
                }
                links.next(entry)
            })
        })?;
        is_first = false;
        if !links.end_pass()? {
            return Ok(());
        }
    }
}

/// A pass whose entries are asked for, one after the other, while something else is read.
pub(super) struct Entries {
    batches: Receiver<Result<Vec<Entry>>>,
    batch: std::vec::IntoIter<Entry>,
}

impl Entries {
    /// Reads on a thread of its own, a little ahead.
    pub(super) fn read<'scope>(
        scope: &'scope Scope<'scope, '_>,
        archive: &'scope Arc<Archive>,
        stream: &'scope Stream,
    ) -> Entries {
        let (out, batches) = sync_channel(1);
        scope.spawn(move || send(archive, stream, &out));
        Entries { batches, batch: Vec::new().into_iter() }
    }

    /// The next one; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.batch.next() {
                return Ok(Some(entry));
            }
            match self.batches.recv() {
                Ok(batch) => self.batch = batch?.into_iter(),
                Err(_) => return Ok(None),
            }
        }
    }
}

fn send(archive: &Arc<Archive>, stream: &Stream, out: &SyncSender<Result<Vec<Entry>>>) {
    let gone = || Error::new(Kind::Stopped, "nobody wants the listing any more");
    let read = Reader::new(archive).and_then(|mut reader| {
        pass(&mut reader, stream, &mut |entries| out.send(Ok(entries)).map_err(|_| gone()))
    });
    if let Err(error) = read {
        // A reader who does not want it has a reason of their own.
        let _ = out.send(Err(error));
    }
}

/// How `ls` shows the entries of a tree.
#[derive(Clone, Copy)]
pub(crate) enum Style {
    /// A line of text.
    Text,
    /// The same with the time of the last change.
    Long,
    /// A line of JSON.
    Json,
}

/// Shows an entry of a tree.
pub(crate) fn show(entry: &Entry, style: Style) {
    match style {
        Style::Text => show_text(entry, ""),
        Style::Long => show_text(entry, &format!("{}  ", changed(entry.seconds))),
        Style::Json => show_json(entry),
    }
}

/// The time of a last change, in the zone of this host.
pub(crate) fn changed(seconds: i64) -> String {
    u64::try_from(seconds).map_or_else(|_| seconds.to_string(), snapshots::shown)
}

fn show_json(entry: &Entry) {
    let (kind, bytes, target) = match &entry.what {
        What::Directory => ("directory", 0, None),
        What::File { bytes, .. } => ("file", *bytes, None),
        What::Symlink { target } => ("link", 0, Some(target)),
        What::HardLink { target } => ("hard-link", 0, Some(target)),
        What::Fifo => ("fifo", 0, None),
        What::Socket => ("socket", 0, None),
        What::CharacterDevice(_) => ("character-device", 0, None),
        What::BlockDevice(_) => ("block-device", 0, None),
    };
    let mut line = json!({
        "path": String::from_utf8_lossy(&entry.path),
        "kind": kind,
        "bytes": bytes,
        "mode": format!("{:04o}", entry.mode & 0o7777),
        "uid": entry.uid,
        "gid": entry.gid,
        "changed": entry.seconds,
        "in_part": entry.is_in_part(),
    });
    if let Some(path) = named::escaped(&entry.path) {
        line["escaped"] = path.into();
    }
    if let Some(target) = target {
        line["target"] = String::from_utf8_lossy(target).into();
    }
    output::json_line(&line);
}

fn show_text(entry: &Entry, changed: &str) {
    let (kind, bytes, target) = match &entry.what {
        What::Directory => ('d', 0, None),
        What::File { bytes, .. } => ('-', *bytes, None),
        What::Symlink { target } => ('l', 0, Some(target)),
        What::HardLink { target } => ('h', 0, Some(target)),
        What::Fifo => ('p', 0, None),
        What::Socket => ('s', 0, None),
        What::CharacterDevice(_) => ('c', 0, None),
        What::BlockDevice(_) => ('b', 0, None),
    };
    let path = if entry.path.is_empty() { ".".to_owned() } else { named::shown(&entry.path) };
    let target = target.map_or_else(String::new, |target| format!(" -> {}", named::shown(target)));
    let (mode, bytes, mark) = (
        entry.mode & 0o7777,
        Size(bytes).to_string(),
        if entry.is_in_part() { "  (in part)" } else { "" },
    );
    output::line(format_args!(
        "{kind}{mode:04o} {:>6} {:>6} {bytes:>9}  {changed}{path}{target}{mark}",
        entry.uid, entry.gid
    ));
}
