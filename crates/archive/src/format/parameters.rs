//! How streams are cut and containers are compressed, and the sizes that readers rely on.

use std::{fmt, str::FromStr};

use onefold_core::{Error, Kind};

/// How streams are cut into chunks; the sizes are means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunking {
    /// Pieces of one size.
    Static(u32),
    /// Rabin's fingerprint of a 48-byte window (dedupv1 3.1).
    Rabin(u32),
    /// FastCDC.
    FastCdc(u32),
}

/// Mean sizes that can be asked for: powers of two between these.
const MEAN: std::ops::RangeInclusive<u32> = 1 << 10..=1 << 18;

impl Chunking {
    /// The mean.
    #[must_use]
    pub fn mean(self) -> usize {
        let (_, mean) = self.code();
        mean as usize
    }

    /// The smallest chunk, but for the last of a file.
    #[must_use]
    pub fn least(self) -> usize {
        self.mean() / 4
    }

    /// The largest chunk.
    #[must_use]
    pub fn most(self) -> usize {
        match self {
            Chunking::Static(size) => size as usize,
            _ => self.mean() * 8,
        }
    }

    pub(crate) fn code(self) -> (u8, u32) {
        match self {
            Chunking::Static(mean) => (1, mean),
            Chunking::Rabin(mean) => (2, mean),
            Chunking::FastCdc(mean) => (3, mean),
        }
    }

    pub(crate) fn from_code(kind: u8, mean: u32) -> Option<Chunking> {
        if !MEAN.contains(&mean) || !mean.is_power_of_two() {
            return None;
        }
        match kind {
            1 => Some(Chunking::Static(mean)),
            2 => Some(Chunking::Rabin(mean)),
            3 => Some(Chunking::FastCdc(mean)),
            _ => None,
        }
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, mean) = self.code();
        write!(f, "{}:{}K", ["", "static", "rabin", "fastcdc"][usize::from(kind)], mean / 1024)
    }
}

impl FromStr for Chunking {
    type Err = Error;

    fn from_str(text: &str) -> Result<Chunking, Error> {
        let wrong = || {
            Error::new(
                Kind::InvalidInput,
                "a chunking is fastcdc:8K, rabin:8K or static:4K, with a power of two from 1K to 256K",
            )
        };
        let (name, size) = text.split_once(':').ok_or_else(wrong)?;
        let kind = match name {
            "static" => 1,
            "rabin" => 2,
            "fastcdc" => 3,
            _ => return Err(wrong()),
        };
        let size: u32 =
            size.strip_suffix(['K', 'k']).and_then(|size| size.parse().ok()).ok_or_else(wrong)?;
        Chunking::from_code(kind, size.saturating_mul(1024)).ok_or_else(wrong)
    }
}

/// How the groups of a container are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1.
    Zstd,
}

impl Compression {
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Compression> {
        [Compression::None, Compression::Lz4, Compression::Zstd]
            .into_iter()
            .find(|compression| compression.code() == code)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["none", "lz4", "zstd"][usize::from(self.code())])
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Compression, Error> {
        let all = [Compression::None, Compression::Lz4, Compression::Zstd];
        let found = all.into_iter().find(|compression| compression.to_string() == text);
        found.ok_or_else(|| Error::new(Kind::InvalidInput, "a compression is zstd, lz4 or none"))
    }
}

/// Chunk bytes compressed together: the cost of a read.
pub(crate) const GROUP_BYTES: usize = 128 << 10;

/// Chunks of a container at most: its metadata stays below 256 KiB.
pub(crate) const SLOTS_MAX: usize = 8000;

/// Bytes of a block of a volume: what one mapping names (dedupv1 3.5).
pub const VOLUME_BLOCK_BYTES: u64 = 128 << 10;
