//! Reading manifests of chunks: text under zstd, `V tag` begins a version, `F bytes h1 h2 …` is a
//! file with a hash of 16 hexadecimal digits for each of its chunks of 4 KiB. Takes hostile bytes:
//! memory is bounded by [`CHUNKS_MAX`], [`VERSIONS_MAX`] and [`LINE_BYTES_MAX`].

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use onefold_core::{Error, Kind, Result};
use zstd::stream::read::Decoder;

/// Bytes of a chunk.
pub const CHUNK_BYTES: u64 = 4096;

/// Chunks of all versions together: a terabyte of releases.
pub const CHUNKS_MAX: usize = 1 << 28;

/// Versions of a manifest.
pub const VERSIONS_MAX: usize = 10_000;

/// Longest line: a file of 16 GiB.
pub const LINE_BYTES_MAX: u64 = 72 << 20;

/// Largest window of the zstd stream, as a power of two.
const WINDOW_LOG_MAX: u32 = 27;

/// The chunks of one version, in the order of its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Name of the version.
    pub name: String,
    /// The hash of each chunk.
    pub chunks: Vec<u64>,
}

/// The versions of a manifest, oldest first.
///
/// # Errors
/// `Corrupt` when it is no manifest or has more than the limits above; those of the system.
pub fn read(path: &Path) -> Result<Vec<Version>> {
    let file = File::open(path).map_err(|e| Error::from_io(path.display(), e))?;
    parse(file).map_err(|e| e.context(path.display()))
}

/// The same from bytes.
///
/// # Errors
/// As [`read`].
pub fn parse(bytes: impl Read) -> Result<Vec<Version>> {
    let wrong = |e| Error::from_io("it can't be expanded", e);
    let mut decoder = Decoder::new(bytes).map_err(wrong)?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(wrong)?;
    let mut text = BufReader::new(decoder);
    let (mut versions, mut total, mut line) = (Vec::<Version>::new(), 0, Vec::new());
    for number in 1.. {
        line.clear();
        let n = text.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(|e| {
            Error::new(Kind::Corrupt, format!("line {number} can't be expanded: {e}"))
        })?;
        if n == 0 {
            break;
        }
        let damaged =
            |why: &str| Error::new(Kind::Corrupt, format!("line {number} of the manifest {why}"));
        let words = std::str::from_utf8(&line).map_err(|_| damaged("is no text"))?;
        if n as u64 == LINE_BYTES_MAX && !words.ends_with('\n') {
            return Err(damaged("is too long"));
        }
        let mut words = words.split_ascii_whitespace();
        match (words.next(), versions.last_mut()) {
            (Some("V"), _) => {
                if versions.len() == VERSIONS_MAX {
                    return Err(damaged("begins one version too many"));
                }
                versions.push(Version {
                    name: words.collect::<Vec<_>>().join(" "),
                    chunks: Vec::new(),
                });
            }
            (Some("F"), Some(version)) => {
                let bytes: u64 = words
                    .next()
                    .and_then(|word| word.parse().ok())
                    .ok_or_else(|| damaged("tells no size"))?;
                let before = version.chunks.len();
                for word in words {
                    if total == CHUNKS_MAX {
                        return Err(damaged("has more chunks than can be replayed"));
                    }
                    version.chunks.push(
                        u64::from_str_radix(word, 16)
                            .map_err(|_| damaged("has a hash that is none"))?,
                    );
                    total += 1;
                }
                if (version.chunks.len() - before) as u64 != bytes.div_ceil(CHUNK_BYTES) {
                    return Err(damaged("has other chunks than its size says"));
                }
            }
            (None, _) => {}
            _ => return Err(damaged("begins neither a version nor a file of one")),
        }
    }
    if versions.is_empty() {
        return Err(Error::new(Kind::Corrupt, "the manifest has no versions"));
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Version>> {
        parse(&zstd::encode_all(text.as_bytes(), 1).unwrap()[..])
    }

    #[test]
    fn versions_and_files_are_read() {
        let versions =
            parsed("V one\nF 5000 00000000000000aa bb\nF 0\nV two words\nF 1 aa\n").unwrap();
        assert_eq!(versions[0], Version { name: "one".into(), chunks: vec![0xaa, 0xbb] });
        assert_eq!(versions[1], Version { name: "two words".into(), chunks: vec![0xaa] });
    }

    #[test]
    fn damage_is_told_with_its_line() {
        for (text, line) in [
            ("F 1 aa\n", 1),
            ("V a\nF 5000 aa\n", 2),
            ("V a\nF x\n", 2),
            ("V a\nF 1 xyz\n", 2),
            ("W\n", 1),
        ] {
            let error = parsed(text).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt);
            assert!(error.to_string().contains(&format!("line {line}")), "{error}");
        }
        assert!(parsed("").is_err());
        assert!(parse(&b"no zstd"[..]).is_err());
    }
}
