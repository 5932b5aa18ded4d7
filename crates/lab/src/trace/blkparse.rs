//! Reading the text form of FIU's traces ("I/O Deduplication", FAST 2010): `ns pid process lba512
//! sectors R|W major minor md5-hex`.
//!
//! The hash is one MD5 for each block of 4096 bytes, or one for each sector of 512, whose eight
//! together stand for the block. Reads are passed over; there are no flushes. The text does not
//! tell how blocks compress: that is [`Assumed`].

use std::{
    io::{BufRead, BufReader, Read},
    rc::Rc,
    time::Duration,
};

use blake2::{Blake2b, Digest, digest::consts::U16};
use onefold_core::{Error, Kind, Lba, Result};
use onefold_testbed::rng::{SplitMix, mix};

use super::{
    Input,
    reader::{WINDOW_LOG_MAX, ZSTD_MAGIC},
};
use crate::{
    Content,
    request::{Request, Source, What},
};

/// Longest line: a request of 16 MiB with a hash for each sector.
const LINE_BYTES_MAX: u64 = 1 << 21;

/// Largest address, in sectors: 2^40 blocks.
const SECTOR_MAX: u64 = 1 << 43;

/// MD5 of 4096 zeroes, and of 512.
const ZERO_BLOCK: &str = "620f0b67a91f7f74151bc5be745b7110";
const ZERO_SECTOR: &str = "bf619eac0cdf3f68d496ea9344137e8b";

/// How contents compress whose trace does not say it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assumed {
    /// Share of the contents that compress, from 0 to 1.
    pub compressible: f64,
    /// How many times smaller those become.
    pub ratio: f64,
}

impl Default for Assumed {
    /// ThinDedup's assumption: four fifths compress, by a fifth of their size.
    fn default() -> Assumed {
        Assumed { compressible: 0.8, ratio: 1.25 }
    }
}

impl Assumed {
    /// The LZ4 size of the content that `chance` stands for.
    pub(crate) fn lz4(&self, chance: u64) -> u16 {
        if SplitMix::new(chance).chance(self.compressible) {
            (4096.0 / self.ratio) as u16
        } else {
            4096
        }
    }
}

/// The requests of a text, which is read twice: first for the size of the device.
pub(super) fn source(input: &Input, assumed: Assumed) -> Result<Source> {
    let (mut end, mut steps) = (0, 0);
    for line in Lines::open(input, assumed)? {
        let (number, request) = line?;
        steps = number;
        if let What::Write { first, blocks, .. } = &request.what {
            end = end.max(first.0 + blocks.len() as u64);
        }
    }
    if end == 0 {
        return Err(Error::new(Kind::Corrupt, format!("{input} has no write in it")));
    }
    Ok(Source {
        volume_blocks: end,
        steps,
        requests: Box::new(Lines::open(input, assumed)?),
        cut: Rc::default(),
    })
}

struct Lines {
    input: Input,
    assumed: Assumed,
    text: Box<dyn BufRead>,
    number: u64,
    begun: Option<u64>,
    last: u64,
    ended: bool,
}

impl Lines {
    fn open(input: &Input, assumed: Assumed) -> Result<Lines> {
        let failed = |error| input.failed(error);
        let mut stream = input.open()?;
        let compressed = stream.fill_buf().map_err(failed)?.starts_with(&ZSTD_MAGIC);
        let text: Box<dyn BufRead> = if compressed {
            let mut expanded = zstd::stream::read::Decoder::with_buffer(stream).map_err(failed)?;
            expanded.window_log_max(WINDOW_LOG_MAX).map_err(failed)?;
            Box::new(BufReader::new(expanded))
        } else {
            stream
        };
        Ok(Lines {
            input: input.clone(),
            assumed,
            text,
            number: 0,
            begun: None,
            last: 0,
            ended: false,
        })
    }

    fn wrong(&self, what: &str) -> Error {
        Error::new(Kind::Corrupt, format!("trace {}, line {}: {what}", self.input, self.number))
    }

    fn line(&mut self) -> Result<Option<String>> {
        let mut bytes = Vec::new();
        let failed = |error| self.input.failed(error);
        self.text.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes).map_err(failed)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if bytes.len() as u64 == LINE_BYTES_MAX && bytes.last() != Some(&b'\n') {
            return Err(self.wrong("it is too long"));
        }
        String::from_utf8(bytes).map(Some).map_err(|_| self.wrong("it is no text"))
    }

    /// The next write.
    fn request(&mut self) -> Result<Option<(u64, Request)>> {
        while let Some(line) = self.line()? {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let &[time, _, _, sector, sectors, op, _, _, md5] = &words[..] else {
                return Err(
                    self.wrong(&format!("nine words were expected, there are {}", words.len()))
                );
            };
            let number = |text: &str, what: &str| {
                text.parse::<u64>()
                    .map_err(|_| self.wrong(&format!("'{}' is no {what}", shown(text))))
            };
            let time = number(time, "time")?;
            let (sector, sectors) =
                (number(sector, "sector")?, number(sectors, "number of sectors")?);
            match op {
                "W" => {}
                "R" => continue,
                _ => return Err(self.wrong(&format!("'{}' is neither R nor W", shown(op)))),
            }
            if sector % 8 != 0
                || sectors % 8 != 0
                || sectors == 0
                || sector.checked_add(sectors).is_none_or(|end| end > SECTOR_MAX)
            {
                return Err(self.wrong(&format!(
                    "{sectors} sectors at {sector} are not whole blocks of 4096 bytes"
                )));
            }
            let hashes = self.hashes(md5, sectors / 8)?;
            // Lines of several processors can be a little out of order.
            self.last = self.last.max(time);
            let begun = *self.begun.get_or_insert(time);
            let blocks = hashes.into_iter().map(|hash| self.content(hash)).collect();
            let what = What::Write { first: Lba(sector / 8), blocks, fua: false };
            return Ok(Some((
                self.number,
                Request { at: Duration::from_nanos(self.last - begun), what },
            )));
        }
        Ok(None)
    }

    /// One hash for each block.
    fn hashes(&self, md5: &str, blocks: u64) -> Result<Vec<[u8; 16]>> {
        let bad =
            || self.wrong(&format!("{} digits of hash do not fit {blocks} blocks", md5.len()));
        let each = usize::try_from(blocks)
            .ok()
            .and_then(|blocks| md5.len().checked_div(blocks))
            .unwrap_or(0);
        if each as u64 * blocks != md5.len() as u64
            || !matches!(each, 32 | 256)
            || !md5.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return Err(bad());
        }
        let mut hashes = Vec::new();
        for text in md5.as_bytes().chunks(each) {
            let text = std::str::from_utf8(text).map_err(|_| bad())?.to_ascii_lowercase();
            let zero = if each == 32 { text == ZERO_BLOCK } else { text == ZERO_SECTOR.repeat(8) };
            let mut hash = [0; 16];
            if zero {
                hash = Content::ZERO.hash;
            } else if each == 32 {
                for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
                    *byte = std::str::from_utf8(digits)
                        .ok()
                        .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                        .ok_or_else(bad)?;
                }
            } else {
                hash = blake2b_128(text.as_bytes());
            }
            hashes.push(hash);
        }
        Ok(hashes)
    }

    fn content(&self, hash: [u8; 16]) -> Content {
        if hash == Content::ZERO.hash {
            return Content::ZERO;
        }
        let chance = hash
            .as_chunks::<8>()
            .0
            .iter()
            .fold(0, |chance, &half| mix(chance ^ u64::from_le_bytes(half)));
        Content { hash, lz4: self.assumed.lz4(chance) }
    }
}

impl Iterator for Lines {
    type Item = Result<(u64, Request)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.request();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

/// BLAKE2b with 128 bits, the hash of traces.
pub(crate) fn blake2b_128(bytes: &[u8]) -> [u8; 16] {
    Blake2b::<U16>::digest(bytes).into()
}

/// A word as it may stand in an error.
fn shown(text: &str) -> String {
    text.chars().take(32).collect()
}
