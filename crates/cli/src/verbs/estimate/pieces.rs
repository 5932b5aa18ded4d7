//! Files cut into pieces that a thread reads at once; holes are counted and not read.

use std::{
    fs::File,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_backend::sparse::next_data;
use onefold_core::{BLOCK_BYTES, Block, Error, Kind, Result, block};
use parking_lot::Mutex;

use super::walk::{Found, NONBLOCK, Walk, unreadable};

/// Bytes of a piece: a long sequential read, and little memory for each thread.
pub(super) const PIECE_BYTES: usize = 4 << 20;

/// Files that can't be read and are named; more are only counted.
const NAMED_MAX: u64 = 10;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A part of a file.
pub(super) struct Piece {
    file: Arc<File>,
    path: Arc<PathBuf>,
    at: u64,
    bytes: usize,
}

/// Gives out pieces to threads.
pub(super) struct Pieces {
    source: Mutex<Source>,
    /// Files read.
    pub(super) files: AtomicU64,
    /// Bytes done, those of holes and of what could not be read included.
    pub(super) done: AtomicU64,
    /// Blocks in holes.
    pub(super) hole_blocks: AtomicU64,
    /// Files and directories that could not be read.
    pub(super) unreadable: AtomicU64,
}

struct Source {
    walk: Walk,
    current: Option<Current>,
}

/// The file that is being cut.
struct Current {
    file: Arc<File>,
    path: Arc<PathBuf>,
    at: u64,
    bytes: u64,
    /// End of the stretch of data that `at` is in.
    data_end: u64,
}

impl Pieces {
    pub(super) fn new(walk: Walk) -> Pieces {
        Pieces {
            source: Mutex::new(Source { walk, current: None }),
            files: AtomicU64::new(0),
            done: AtomicU64::new(0),
            hole_blocks: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
        }
    }

    /// The next piece; `None` at the end.
    pub(super) fn next(&self) -> Option<Piece> {
        let mut source = self.source.lock();
        loop {
            if let Some(current) = &mut source.current {
                match self.cut(current) {
                    Ok(Some(piece)) => return Some(piece),
                    Ok(None) => {}
                    Err(error) => self.complain(&error),
                }
                source.current = None;
            }
            match source.walk.next()?.and_then(open) {
                Ok(current) => {
                    self.files.fetch_add(1, Relaxed);
                    source.current = Some(current);
                }
                Err(error) => self.complain(&error),
            }
        }
    }

    /// The next piece of a file, after its holes.
    fn cut(&self, current: &mut Current) -> Result<Option<Piece>> {
        if current.at >= current.data_end {
            let data = next_data(&current.file, current.at, current.bytes)
                .map_err(|error| error.context(current.path.display()))?;
            // Whole blocks: what a hole shares with data counts as data.
            let (start, end) = data.map_or((current.bytes, current.bytes), |(start, end)| {
                (start - start % BLOCK, end)
            });
            let start = start.max(current.at);
            add(&self.hole_blocks, (start - current.at).div_ceil(BLOCK));
            add(&self.done, start - current.at);
            (current.at, current.data_end) =
                (start, end.next_multiple_of(BLOCK).min(current.bytes));
        }
        if current.at >= current.bytes {
            return Ok(None);
        }
        let bytes = (current.data_end - current.at).min(PIECE_BYTES as u64) as usize;
        let piece =
            Piece { file: current.file.clone(), path: current.path.clone(), at: current.at, bytes };
        current.at += bytes as u64;
        Ok(Some(piece))
    }

    /// Reads a piece; gives the blocks that it filled, the last one padded with zeroes.
    pub(super) fn read<'a>(&self, piece: &Piece, into: &'a mut [Block]) -> &'a [Block] {
        let blocks = piece.bytes.div_ceil(BLOCK_BYTES);
        let bytes = block::bytes_mut(&mut into[..blocks]);
        let mut filled = 0;
        while filled < piece.bytes {
            match piece.file.read_at(&mut bytes[filled..piece.bytes], piece.at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.complain(&unreadable(&piece.path, error));
                    break;
                }
            }
        }
        add(&self.done, piece.bytes as u64);
        bytes[filled..].fill(0);
        &into[..filled.div_ceil(BLOCK_BYTES)]
    }

    /// Says what can't be read, unless too much was said already.
    fn complain(&self, error: &Error) {
        match self.unreadable.fetch_add(1, Relaxed) {
            n if n < NAMED_MAX => tracing::warn!("{error}"),
            NAMED_MAX => tracing::warn!("more can't be read; they are only counted"),
            _ => {}
        }
    }
}

/// Adds to a sum that holes make as large as anybody likes.
fn add(sum: &AtomicU64, more: u64) {
    let _ = sum.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(more)));
}

fn open(found: Found) -> Result<Current> {
    let Found { path, bytes, file } = found;
    let file = match file {
        Some(file) => file,
        None => File::options()
            .read(true)
            .custom_flags(NONBLOCK)
            .open(&path)
            .map_err(|e| unreadable(&path, e))?,
    };
    let kind = file.metadata().map_err(|e| unreadable(&path, e))?.file_type();
    if kind.is_dir() || (!kind.is_file() && bytes == 0) {
        return Err(Error::new(
            Kind::InvalidInput,
            format!("{} is no file any more", path.display()),
        ));
    }
    Ok(Current { file: Arc::new(file), path: Arc::new(path), at: 0, bytes, data_end: 0 })
}
