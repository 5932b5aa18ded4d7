//! Whether a file that is read again has the content that a snapshot has of it, although its times say
//! that nothing changed it.
//!
//! The stored lengths of chunks cut what is read, and each piece is compared with its fingerprint. So it
//! does not matter where this version cuts, nor which zeroes are holes by now, and what was stored is
//! not read.

use std::sync::Arc;

use onefold_core::{Fingerprint, Result};

use super::reader::{Pages, TreeReader};
use crate::{
    format::{
        Address,
        damage::is_damage,
        recipe::Part,
        tree_node::{FileMap, TreeNode},
    },
    operations_log::Domain,
};

/// Zeroes that are compared at once.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// What comes next by what is stored.
enum Next {
    Chunk(Fingerprint, usize),
    Zeroes(u64),
    /// Nothing more.
    End,
}

/// How much is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Equal,
    Other,
    /// The stored content can't be read.
    Unknown,
}

/// Compares a file with what is stored of it, while somebody reads it.
pub(super) struct Comparison {
    /// Of what is stored: its fingerprints may be by an older data key.
    domain: Arc<Domain>,
    map: FileMap,
    pages: Pages,
    parts: std::vec::IntoIter<Part>,
    chunks: std::vec::IntoIter<(Fingerprint, u32)>,
    next: Option<Next>,
    /// The beginning of the chunk that comes next.
    held: Vec<u8>,
    verdict: Verdict,
}

impl Comparison {
    /// Begins with the first byte of a file that has this content.
    pub(super) fn new(domain: Arc<Domain>, map: &FileMap) -> Comparison {
        let (pages, parts) = match map {
            FileMap::Inline(parts) => (Pages::default(), parts.clone()),
            FileMap::Pages(top) => (Pages::new(Some(*top)), Vec::new()),
        };
        Comparison {
            domain,
            map: map.clone(),
            pages,
            parts: parts.into_iter(),
            chunks: Vec::new().into_iter(),
            next: None,
            held: Vec::new(),
            verdict: Verdict::Equal,
        }
    }

    /// True when the bytes that were given are known to be others than those that are stored.
    pub(super) fn differs(&self) -> bool {
        self.verdict == Verdict::Other
    }

    /// The map of the stored file, once all content was given, when it is the same; `None` when it is not, or when that
    /// is not known.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub(super) fn all_equal(mut self, reader: &mut TreeReader) -> Result<Option<FileMap>> {
        if self.verdict != Verdict::Equal || !self.held.is_empty() {
            return Ok(None);
        }
        let next = match self.next.take() {
            None | Some(Next::Zeroes(0)) => self.find_next(reader),
            Some(next) => Ok(next),
        };
        match next {
            Ok(Next::End) => Ok(Some(self.map)),
            Ok(_) => Ok(None),
            Err(error) if is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The map of the stored file.
    pub(super) fn map(&self) -> &FileMap {
        &self.map
    }

    /// Where the first chunk of what is stored is, when the first page of the map names one. It is asked before any
    /// content is given.
    ///
    /// # Errors
    /// Errors of the system. Where what is stored is damaged, nothing is known.
    pub(super) fn first_chunk(&mut self, reader: &mut TreeReader) -> Result<Option<Address>> {
        while self.parts.as_slice().is_empty() {
            let read = match self.pages.next(reader) {
                Ok(Some(node)) => reader.node(&node),
                Ok(None) => return Ok(None),
                Err(error) => Err(error),
            };
            match read {
                Ok(TreeNode::FileMap(parts)) => self.parts = parts.into_iter(),
                Ok(_) => {}
                Err(error) if is_damage(&error) => {
                    self.verdict = Verdict::Unknown;
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.parts.as_slice().iter().find_map(|part| match part {
            Part::Run { first, .. } => Some(*first),
            _ => None,
        }))
    }

    /// The next bytes of the file.
    ///
    /// # Errors
    /// Errors of the system. Where what is stored is damaged, nothing is known from there on.
    pub(super) fn bytes(&mut self, reader: &mut TreeReader, bytes: &[u8]) -> Result<()> {
        match self.compare(reader, bytes) {
            Err(error) if is_damage(&error) => {
                self.verdict = Verdict::Unknown;
                Ok(())
            }
            compared => compared,
        }
    }

    /// So many zeroes that come next in the file.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes).
    pub(super) fn zeroes(&mut self, reader: &mut TreeReader, mut bytes: u64) -> Result<()> {
        while bytes > 0 && self.verdict == Verdict::Equal {
            if let Some(Next::Zeroes(left)) = &mut self.next {
                let n = bytes.min(*left);
                *left -= n;
                bytes -= n;
                if n > 0 {
                    continue;
                }
            }
            // No longer than what comes next, and then as many zeroes as it has are passed at once.
            let n = bytes.min(self.held_out() as u64) as usize;
            self.bytes(reader, &ZEROES[..n])?;
            bytes -= n as u64;
        }
        Ok(())
    }

    /// Zeroes that can be given as bytes before it is known what comes behind them; one or more.
    fn held_out(&self) -> usize {
        match &self.next {
            Some(Next::Chunk(_, bytes)) => (bytes - self.held.len()).clamp(1, ZEROES.len()),
            _ => 1,
        }
    }

    fn compare(&mut self, reader: &mut TreeReader, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && self.verdict == Verdict::Equal {
            if self.next.is_none() {
                self.next = Some(self.find_next(reader)?);
            }
            let (n, is_equal, is_over) = match &mut self.next {
                Some(Next::Zeroes(left)) => {
                    let n =
                        usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    *left -= n as u64;
                    (n, bytes[..n].iter().all(|&byte| byte == 0), *left == 0)
                }
                Some(Next::Chunk(fingerprint, length)) => {
                    let n = bytes.len().min(*length - self.held.len());
                    if self.held.len() + n < *length {
                        self.held.extend_from_slice(&bytes[..n]);
                        (n, true, false)
                    } else if self.held.is_empty() {
                        (n, self.domain.is_of(&bytes[..n], fingerprint), true)
                    } else {
                        self.held.extend_from_slice(&bytes[..n]);
                        let is_equal = self.domain.is_of(&self.held, fingerprint);
                        self.held.clear();
                        (n, is_equal, true)
                    }
                }
                Some(Next::End) | None => (bytes.len(), false, false),
            };
            if !is_equal {
                self.verdict = Verdict::Other;
            }
            if is_over {
                self.next = None;
            }
            bytes = &bytes[n..];
        }
        Ok(())
    }

    fn find_next(&mut self, reader: &mut TreeReader) -> Result<Next> {
        loop {
            match self.chunks.next() {
                Some((_, 0)) => continue,
                Some((fingerprint, bytes)) => return Ok(Next::Chunk(fingerprint, bytes as usize)),
                None => {}
            }
            match self.parts.next() {
                Some(Part::Zeroes(0) | Part::Hole(0)) => {}
                Some(Part::Zeroes(bytes) | Part::Hole(bytes)) => return Ok(Next::Zeroes(bytes)),
                Some(Part::Run { first, fingerprints, .. }) => {
                    self.chunks = reader.chunks_of(first, &fingerprints)?.into_iter();
                }
                Some(Part::End(_) | Part::Slice { .. }) => {}
                None => match self.pages.next(reader)? {
                    None => return Ok(Next::End),
                    Some(node) => {
                        if let TreeNode::FileMap(parts) = reader.node(&node)? {
                            self.parts = parts.into_iter();
                        }
                    }
                },
            }
        }
    }
}
