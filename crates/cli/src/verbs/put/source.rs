//! The sources of a put: standard input, a file with its holes, a directory with all that is in it.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, Seek},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use onefold_archive::{LEVELS_MAX, encode_entry};
use onefold_backend::{
    scratch::scratch,
    spared::Spared,
    sparse::{cut_off, next_data, still_has},
    tree::{Found, Options, Walk, read_data},
};
use onefold_core::{
    Error, Kind, Result,
    tree::{Entry, IN_PART, What},
};

use crate::verbs::exclude::{self, Exclude};
use onefold::parts::control::stream::Intake;

/// Longest path below the root, in bytes: four times what a system call takes. Whoever nests long
/// names makes a listing that is no larger than this for each name.
const PATH_MAX: usize = 16 << 10;

/// Most stretches of data of a file: the largest entry that readers take has room for them.
const STRETCHES_MAX: usize = 700_000;

/// Bytes of a listing that are held in memory as they are.
const HELD_MAX: usize = 8 << 20;

/// Bytes of a listing that are held in memory compressed, while there is a file for them.
const PACKED_MAX: usize = 1 << 20;

/// How hard a listing is compressed: paths repeat each other, and need no search.
const LEVEL: i32 = 1;

/// The source of a put.
pub(super) enum Source {
    Input,
    File(PathBuf),
    Tree(Box<Tree>),
}

/// A directory, and what of it is wanted.
pub(super) struct Tree {
    pub(super) root: PathBuf,
    pub(super) exclude: Exclude,
    pub(super) selection: exclude::Options,
    /// A path that can't be read makes the put fail, instead of being left out.
    pub(super) strict: bool,
    /// Paths that could not be read.
    pub(super) skipped: AtomicU64,
}

impl Source {
    /// Its size as far as it is known beforehand; 0 for nothing.
    pub(super) fn total(&self) -> Result<u64> {
        match self {
            Source::File(path) => length(path, &open(path)?),
            Source::Input | Source::Tree(_) => Ok(0),
        }
    }

    /// Files and directories that could not be read, whole or in part.
    pub(super) fn skipped(&self) -> u64 {
        match self {
            Source::Tree(tree) => tree.skipped.load(Relaxed),
            Source::Input | Source::File(_) => 0,
        }
    }

    /// Gives all of it.
    pub(super) fn feed(&self, into: &mut dyn Intake) -> Result<()> {
        match self {
            Source::Tree(tree) => tree.feed(into),
            Source::File(path) => {
                let file = open(path)?;
                let end = length(path, &file)?;
                feed_file(into, &file, end).map_err(|e| e.context(path.display()))
            }
            Source::Input => {
                let mut input = std::io::stdin().lock();
                while into.fill(&mut |room| read_once(&mut input, room))? > 0 {}
                Ok(())
            }
        }
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path)
        .map_err(|e| Error::from_io(format_args!("{} can't be opened", path.display()), e))
}

fn read_once(input: &mut impl Read, room: &mut [u8]) -> Result<usize> {
    loop {
        match input.read(room) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            read => return read.map_err(|e| Error::from_io("standard input can't be read", e)),
        }
    }
}

/// Bytes of a file or a device.
fn length(path: &Path, file: &File) -> Result<u64> {
    use std::os::unix::fs::FileTypeExt;
    let metadata = file
        .metadata()
        .map_err(|e| Error::from_io(format_args!("{} can't be looked at", path.display()), e))?;
    if metadata.is_dir() {
        let shown = path.display();
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{shown} is a directory, which is stored with -r {shown}"),
        ));
    }
    if metadata.file_type().is_block_device() {
        onefold_backend::device_bytes(path)
    } else {
        Ok(metadata.len())
    }
}

/// All bytes of a file, its holes without reading them.
fn feed_file(feeder: &mut dyn Intake, file: &File, end: u64) -> Result<()> {
    if end == 0 {
        // A pipe, or a file that does not tell its length.
        let mut file = file;
        while feeder.fill(&mut |room| read_once(&mut file, room))? > 0 {}
        return Ok(());
    }
    let (mut spared, mut at) = (Spared::new(file, end), 0);
    while let Some((start, stop)) = next_data(file, at, end)? {
        if start > at {
            feeder.zeroes(start - at)?;
        }
        at = start + read_data_range(feeder, &mut spared, start, stop)?;
        if at < stop {
            return Err(cut_off(at, end));
        }
    }
    still_has(file, end)?;
    // The hole behind the last data.
    if at < end { feeder.zeroes(end - at) } else { Ok(()) }
}

fn read_data_range(
    feeder: &mut dyn Intake,
    file: &mut Spared<'_>,
    start: u64,
    stop: u64,
) -> Result<u64> {
    let mut at = start;
    while at < stop {
        let n = feeder.fill(&mut |room| {
            let most = room.len().min(usize::try_from(stop - at).unwrap_or(usize::MAX));
            file.read_at(&mut room[..most], at).map_err(|e| Error::from_io("it can't be read", e))
        })?;
        if n == 0 {
            break;
        }
        at += n as u64;
    }
    Ok(at - start)
}

/// A listing that grows. It is compressed piece by piece, as each name repeats the path above it;
/// what is compressed lies in a file without a name, so that a tree of any size takes little
/// memory.
#[derive(Default)]
struct Listing {
    file: Option<File>,
    /// Compressed bytes in it.
    written: u64,
    /// What is compressed and not in the file.
    packed: Vec<u8>,
    /// The end, behind all that is compressed.
    held: Vec<u8>,
    /// No file could be made or written: the rest stays in memory, compressed.
    stays: bool,
}

impl Listing {
    #[cfg(test)]
    fn in_memory(&self) -> usize {
        self.packed.len() + self.held.len()
    }

    fn add(&mut self, entry: &Entry) -> Result<()> {
        encode_entry(entry, &mut self.held);
        if self.held.len() < HELD_MAX {
            return Ok(());
        }
        let packed = zstd::bulk::compress(&self.held, LEVEL).map_err(unpackable)?;
        self.packed.extend_from_slice(&packed);
        self.held.clear();
        if self.packed.len() < PACKED_MAX || self.stays {
            return Ok(());
        }
        if let Err(error) = self.write() {
            // Hours of reading are not lost for want of a place for names.
            tracing::warn!("{error}; the rest of the listing is held in memory");
            self.stays = true;
        }
        Ok(())
    }

    /// Moves what is compressed to the file.
    fn write(&mut self) -> Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(scratch().map_err(|e| {
                e.context("a file for the listing of the tree can't be made; TMPDIR says where")
            })?),
        };
        // A disk that gets full has taken a part of it.
        file.write_all_at(&self.packed, self.written)
            .map_err(|e| Error::from_io("the listing of the tree can't be written to a file", e))?;
        self.written += self.packed.len() as u64;
        self.packed.clear();
        Ok(())
    }

    /// Gives all of it.
    fn feed(&mut self, into: &mut dyn Intake) -> Result<()> {
        if let Some(mut file) = self.file.take() {
            file.rewind()
                .map_err(|e| Error::from_io("the listing of the tree can't be read again", e))?;
            feed_packed(into, self.written, (&file).take(self.written))?;
        }
        feed_packed(into, self.packed.len() as u64, &self.packed[..])?;
        feed_all(into, &self.held[..])
    }
}

fn unpackable(error: std::io::Error) -> Error {
    Error::from_io("the listing of the tree can't be compressed", error)
}

/// Gives what so many compressed bytes stand for; none are no piece at all.
fn feed_packed(into: &mut dyn Intake, bytes: u64, from: impl Read) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    feed_all(into, zstd::stream::read::Decoder::new(from).map_err(unpackable)?)
}

/// Gives what can be read, up to its end.
fn feed_all(into: &mut dyn Intake, mut from: impl Read) -> Result<()> {
    while into.fill(&mut |room| read_once(&mut from, room))? > 0 {}
    Ok(())
}

impl Tree {
    /// The data of all files, then the listing.
    fn feed(&self, into: &mut dyn Intake) -> Result<()> {
        let options = Options {
            levels_max: LEVELS_MAX,
            path_max: PATH_MAX,
            selection: Some(Box::new(self.exclude.clone())),
            ..self.selection.of_walk()
        };
        let mut names = Listing::default();
        for found in Walk::new(&self.root, options)? {
            match found {
                Ok(found) => self.give(into, found, &mut names)?,
                Err(error) => self.skip(error)?,
            }
        }
        into.end_recipe()?;
        names.feed(into)?;
        if self.skipped.load(Relaxed) > 0 { into.incomplete() } else { Ok(()) }
    }

    /// The data of one entry, and the entry for the listing. Data that a file gave before it failed
    /// belongs to the file, which is marked. An entry that lacks attributes is stored without them.
    fn give(&self, into: &mut dyn Intake, mut found: Found, names: &mut Listing) -> Result<()> {
        found.lacks.take().map_or(Ok(()), |error| self.skip(error))?;
        if let Some(user) = found.mounted_by {
            tracing::warn!(
                "{}: user {user} mounted a file system of his own there; what is in it is left out",
                self.root.join(OsStr::from_bytes(&found.entry.path)).display()
            );
        }
        if let (What::File { bytes, data }, Some(file)) = (&mut found.entry.what, &found.file) {
            into.border()?;
            let (read, failed) = read_data(file, *bytes, STRETCHES_MAX, &mut |read| {
                into.fill(&mut |room| read(room))
            })?;
            *data = read;
            if let Some(error) = failed {
                found.entry.mode |= IN_PART;
                self.skip(
                    error.context(self.root.join(OsStr::from_bytes(&found.entry.path)).display()),
                )?;
            }
        }
        names.add(&found.entry)
    }

    fn skip(&self, error: Error) -> Result<()> {
        if self.strict {
            return Err(error);
        }
        self.skipped.fetch_add(1, Relaxed);
        tracing::warn!("left out: {error}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes bytes, and nothing else.
    struct Taken(Vec<u8>);

    impl Intake for Taken {
        fn fill(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
            let mut room = vec![0; 1 << 20];
            let n = read(&mut room)?;
            self.0.extend_from_slice(&room[..n]);
            Ok(n)
        }

        fn zeroes(&mut self, _: u64) -> Result<()> {
            unreachable!("a listing has no holes")
        }

        fn border(&mut self) -> Result<()> {
            Ok(())
        }

        fn end_recipe(&mut self) -> Result<()> {
            Ok(())
        }

        fn incomplete(&mut self) -> Result<()> {
            Ok(())
        }
    }

    /// What was cut off was stored as zeroes.
    #[test]
    fn a_file_that_is_cut_off_while_it_is_read_is_not_stored() {
        struct Cutting<'a>(&'a File, u64);

        impl Intake for Cutting<'_> {
            fn fill(&mut self, read: &mut dyn FnMut(&mut [u8]) -> Result<usize>) -> Result<usize> {
                let n = read(&mut [0; 1 << 20]);
                self.0.set_len(self.1).unwrap();
                n
            }

            fn zeroes(&mut self, _: u64) -> Result<()> {
                Ok(())
            }

            fn border(&mut self) -> Result<()> {
                Ok(())
            }

            fn end_recipe(&mut self) -> Result<()> {
                Ok(())
            }

            fn incomplete(&mut self) -> Result<()> {
                Ok(())
            }
        }

        let end = 16 << 20;
        let file = scratch().unwrap();
        for (data, cut) in [(end, 5 << 20), (1 << 20, 12 << 20)] {
            file.set_len(0).unwrap();
            file.write_all_at(&vec![7; data], 0).unwrap();
            file.set_len(end as u64).unwrap();
            let error = feed_file(&mut Cutting(&file, cut), &file, end as u64).unwrap_err();
            let told = [format!("ends at byte {cut}"), format!("had {end} bytes")];
            assert!(told.iter().all(|part| error.to_string().contains(part)), "{error}");
        }
    }

    fn entry(path: Vec<u8>) -> Entry {
        Entry {
            path,
            what: What::Fifo,
            mode: 0o644,
            uid: 0,
            gid: 0,
            seconds: 0,
            nanoseconds: 0,
            attributes: Vec::new(),
        }
    }

    /// A long name of a directory costs its owner its bytes once, and the listing once for each
    /// name below.
    #[test]
    fn rule_07_long_paths_cost_no_memory_where_there_is_no_place_for_their_listing() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut names = Listing { file: Some(full), ..Listing::default() };
        for n in 0..6000 {
            let path = [&[b'd'; PATH_MAX - 16][..], format!("/{n}").as_bytes()].concat();
            names.add(&entry(path)).unwrap();
        }
        let held = names.in_memory();
        assert!(held < 2 * HELD_MAX, "{held} bytes of memory for 36 KiB of names");
    }

    #[test]
    fn a_listing_without_a_place_for_its_file_stays_in_memory() {
        let entry = entry(vec![b'p'; 4000]);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut names = Listing { file: Some(full), ..Listing::default() };
        let mut all = Vec::new();
        for _ in 0..3 * HELD_MAX / 4000 {
            names.add(&entry).unwrap();
            encode_entry(&entry, &mut all);
        }
        assert!(names.write().is_err() && names.written == 0);
        let mut taken = Taken(Vec::new());
        // Nothing is read from a file to which nothing was written.
        names.feed(&mut taken).unwrap();
        assert!(taken.0 == all);
    }
}
