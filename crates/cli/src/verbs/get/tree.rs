//! A tree restored: its listing checked, everything made, then directories finished, then all of it
//! durable.

use std::{fs::File, path::Path, sync::Arc};

use onefold_archive::{Archive, Content, Reader, Stream, Verify};
use onefold_backend::{
    room::room,
    tree::{Choices, LeftOut, Restorer},
};
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, What},
};

use super::{
    listing::{self, Entries},
    space::fits,
};
use crate::verbs::gathered::Stretch;
use onefold_console::progress::Progress;

/// The parts that were not restored as they were.
pub(super) struct Missing {
    pub(super) left_out: LeftOut,
    /// Files of which only a part was stored.
    pub(super) in_part: u64,
}

/// Restores a tree below `root`.
pub(super) fn restore(
    archive: &Arc<Archive>,
    reader: &mut Reader,
    stream: &Stream,
    root: &Path,
    verify: Verify,
    choices: Choices,
) -> Result<Missing> {
    look(reader, stream, root)?;
    let mut restorer = Restorer::new(root, choices)?;
    let in_part = fill(archive, reader, stream, &mut restorer, verify)?;
    restorer.made_all()?;
    listing::pass(reader, stream, &mut |entries| {
        entries.iter().try_for_each(|entry| restorer.finish(entry))
    })?;
    Ok(Missing { left_out: restorer.end()?, in_part })
}

/// Sees that the listing is one that a walk can give, and that listing and data agree and fit,
/// before anything is made.
fn look(reader: &mut Reader, stream: &Stream, root: &Path) -> Result<()> {
    let (all, data) = reader.sizes(&stream.recipe)?;
    fits(root, data, 0)?;
    let (mut entries, mut listed) = (0u64, 0u64);
    let most = room(root)?.files.unwrap_or(u64::MAX);
    listing::check(reader, stream, &mut |entry| {
        entries += 1;
        if let What::File { data, .. } = &entry.what {
            listed = data.iter().fold(listed, |listed, range| listed.saturating_add(range.1));
        }
        if listed > all {
            return Err(Error::new(Kind::Corrupt, "the tree has less data than its listing"));
        }
        if entries > most { fits(root, data, entries) } else { Ok(()) }
    })?;
    if listed < all {
        Err(Error::new(Kind::Corrupt, "the tree has more data than its listing"))
    } else {
        Ok(())
    }
}

/// Makes all entries, and fills the files; gives the number of those that were stored in part.
fn fill(
    archive: &Arc<Archive>,
    reader: &mut Reader,
    stream: &Stream,
    restorer: &mut Restorer,
    verify: Verify,
) -> Result<u64> {
    std::thread::scope(|scope| {
        let mut filling = Filling {
            entries: Entries::read(scope, archive, stream),
            restorer,
            target: None,
            stretch: Stretch::default(),
            in_part: 0,
        };
        filling.next_file()?;
        let (bar, mut done) = (Progress::new("restoring"), 0);
        reader.read(&stream.recipe, verify, &mut |content| {
            match content {
                Content::Bytes(bytes) => filling.bytes(bytes)?,
                Content::Zeroes(n) | Content::Hole(n) => filling.zeroes(n)?,
            }
            done += match content {
                Content::Bytes(bytes) => bytes.len() as u64,
                Content::Zeroes(n) | Content::Hole(n) => n,
            };
            bar.set(done, stream.bytes);
            Ok(())
        })?;
        match filling.target {
            Some(_) => Err(Error::new(Kind::Corrupt, "the tree has less data than its listing")),
            None => Ok(filling.in_part),
        }
    })
}

/// The file that content goes to now.
struct Target {
    entry: Entry,
    file: File,
    /// The range of data, and how much of it is written.
    range: usize,
    written: u64,
}

impl Target {
    fn range(&self) -> Option<(u64, u64)> {
        match &self.entry.what {
            What::File { data, .. } => data.get(self.range).copied(),
            _ => None,
        }
    }
}

/// Entries on their way from the listing to the disk, and data into their files.
struct Filling<'a> {
    entries: Entries,
    restorer: &'a mut Restorer,
    /// `None` when there is no file left that has data.
    target: Option<Target>,
    /// What is to be written to it.
    stretch: Stretch,
    in_part: u64,
}

impl Filling<'_> {
    /// Makes entries up to the next file that has data.
    fn next_file(&mut self) -> Result<()> {
        while let Some(entry) = self.entries.next()? {
            let Some(file) = self.restorer.make(&entry)? else { continue };
            if entry.is_in_part() {
                tracing::warn!(
                    "'{}' could not be read to its end when it was stored: the rest of it is \
                     zeroes",
                    String::from_utf8_lossy(&entry.path)
                );
                self.in_part += 1;
            }
            let target = Target { entry, file, range: 0, written: 0 };
            if target.range().is_some() {
                self.target = Some(target);
                return Ok(());
            }
            self.restorer.finish_file(&target.entry, &target.file)?;
        }
        Ok(())
    }

    /// The file at hand, where it goes on, and how much fits there; and what is to be written to it.
    fn place(&mut self) -> Result<(&File, u64, u64, &mut Stretch)> {
        let stretch = &mut self.stretch;
        let place = self.target.as_ref().and_then(|target| {
            let (start, length) = target.range()?;
            Some((&target.file, start + target.written, length - target.written, stretch))
        });
        place.ok_or_else(|| Error::new(Kind::Corrupt, "the tree has more data than its listing"))
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (file, at, room, stretch) = self.place()?;
            let (now, later) =
                bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            stretch.bytes(file, at, now)?;
            self.advance(now.len() as u64)?;
            bytes = later;
        }
        Ok(())
    }

    /// The file has a hole there already.
    fn zeroes(&mut self, mut zeroes: u64) -> Result<()> {
        while zeroes > 0 {
            let n = self.place()?.2.min(zeroes);
            self.advance(n)?;
            zeroes -= n;
        }
        Ok(())
    }

    fn advance(&mut self, n: u64) -> Result<()> {
        let Some(target) = &mut self.target else { return Ok(()) };
        target.written += n;
        if target.range().is_some_and(|(_, length)| target.written < length) {
            return Ok(());
        }
        (target.range, target.written) = (target.range + 1, 0);
        if target.range().is_none()
            && let Some(done) = self.target.take()
        {
            self.stretch.end(&done.file)?;
            self.restorer.finish_file(&done.entry, &done.file)?;
            self.next_file()?;
        }
        Ok(())
    }
}
