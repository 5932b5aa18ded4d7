//! The bytes of a container on their way: its own, and parts of buffers that it shares with others,
//! which are not copied.

use std::{ops::Range, sync::Arc};

use crate::memory::{BufferPool, Pooled};

/// Bytes in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Those that were copied.
    own: Vec<u8>,
    pieces: Vec<Piece>,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Piece {
    /// The buffer that has them, when they are not among the container's own.
    of: Option<Arc<Pooled>>,
    range: Range<usize>,
}

impl Content {
    /// Nothing yet. Copies will go into this buffer.
    pub(super) fn over(mut own: Vec<u8>, capacity: usize) -> Content {
        own.clear();
        own.reserve(capacity);
        Content { own, pieces: Vec::new(), bytes: 0 }
    }

    /// All of a buffer.
    pub(super) fn whole(own: Vec<u8>) -> Content {
        let bytes = own.len();
        Content { own, pieces: vec![Piece { of: None, range: 0..bytes }], bytes }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// Copies bytes behind those that are there.
    pub(super) fn copy(&mut self, bytes: &[u8]) {
        let from = self.own.len();
        self.own.extend_from_slice(bytes);
        self.add(None, from..self.own.len());
    }

    /// Appends a part of a buffer, which stays in memory as long as the container.
    pub(super) fn share(&mut self, of: &Arc<Pooled>, range: Range<usize>) {
        self.add(Some(of), range);
    }

    fn add(&mut self, of: Option<&Arc<Pooled>>, range: Range<usize>) {
        self.bytes += range.len();
        match self.pieces.last_mut() {
            Some(last)
                if last.of.as_ref().map(Arc::as_ptr) == of.map(Arc::as_ptr)
                    && last.range.end == range.start =>
            {
                last.range.end = range.end;
            }
            _ => self.pieces.push(Piece { of: of.cloned(), range }),
        }
    }

    fn slice<'a>(&'a self, piece: &'a Piece, part: Range<usize>) -> &'a [u8] {
        let all = piece.of.as_ref().map_or(&self.own[..], |of| of.bytes());
        &all[piece.range.start + part.start..piece.range.start + part.end]
    }

    /// All bytes, in slices.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| self.slice(piece, 0..piece.range.len()))
    }

    /// A part of the bytes, in slices.
    pub(super) fn part(&self, wanted: Range<usize>) -> Vec<&[u8]> {
        let (mut slices, mut at) = (Vec::new(), 0);
        for piece in &self.pieces {
            let end = at + piece.range.len();
            let (from, to) = (wanted.start.max(at), wanted.end.min(end));
            if from < to {
                slices.push(self.slice(piece, from - at..to - at));
            }
            if end >= wanted.end {
                break;
            }
            at = end;
        }
        slices
    }

    /// Gives the buffer of the copies back.
    pub(super) fn give_back(self, buffers: &BufferPool) {
        buffers.give(self.own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_and_shared_bytes_stand_in_their_order() {
        let pool = Arc::new(BufferPool::default());
        let shared = Arc::new(Pooled::new((0..100).collect(), pool.clone()));
        let mut content = Content::over(Vec::new(), 0);
        content.share(&shared, 0..10);
        content.share(&shared, 10..20);
        content.copy(b"abc");
        content.copy(b"d");
        content.share(&shared, 50..52);
        let all: Vec<Vec<u8>> = content.slices().map(<[u8]>::to_vec).collect();
        assert_eq!(all, [(0..20).collect::<Vec<u8>>(), b"abcd".to_vec(), vec![50, 51]]);
        assert_eq!(content.len(), 26);
        for from in 0..26 {
            for to in from..=26 {
                assert_eq!(content.part(from..to).concat(), all.concat()[from..to]);
            }
        }
        drop(shared);
        assert_eq!(pool.take().len(), 0, "the container still has it");
        content.give_back(&BufferPool::default());
        assert_eq!(pool.take().len(), 100);
    }
}
