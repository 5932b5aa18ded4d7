//! New chunks of a stream that wait for their places, with their counts, and what is to be told of
//! the stream when they have them (RAD, Algorithm 1).
//!
//! Memory is bounded: all streams of a process draw from one account, and whoever finds it overdrawn
//! places what it gathered.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use onefold_core::Fingerprint;

use crate::{
    chunk_index::ByFingerprint,
    format::{
        Address,
        class::{Class, ClassBorder},
        container::{CHUNK_ENTRY_BYTES, GROUP_ENTRY_BYTES, HEADER_BYTES},
        parameters::{GROUP_BYTES, SLOTS_MAX},
    },
    memory::Pooled,
};

/// Bytes of memory that a step takes, with what its list keeps in reserve.
const STEP_BYTES: u64 = 64;

/// Bytes of memory that a chunk takes beside its content: its entry, and that in the index.
const CHUNK_BYTES: u64 = 128;

/// A part of the stream, to be told in its order.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// A chunk that was stored before.
    Stored(Address, Fingerprint, u32),
    /// A chunk that waits: its number.
    Waiting(u32),
    Zeroes(u64),
    Hole(u64),
    Mark,
}

/// Where the content of a chunk is.
enum Content {
    /// In the buffer of a batch of which most chunks are new.
    Shared(Arc<Pooled>, Range<usize>),
    Own(Box<[u8]>),
}

/// A chunk that waits for its place.
pub(super) struct NewChunk {
    pub(super) fingerprint: Fingerprint,
    /// How often the stream names it, as far as it was gathered.
    pub(super) count: u16,
    content: Content,
}

impl NewChunk {
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Shared(of, range) => &of.bytes()[range.clone()],
            Content::Own(bytes) => bytes,
        }
    }
}

/// Chunks that were gathered since some were placed last.
#[derive(Default)]
pub(super) struct Waiting {
    /// In the order in which they came.
    pub(super) chunks: Vec<NewChunk>,
    pub(super) steps: Vec<Step>,
    known: ByFingerprint<u32>,
    /// Bytes of memory.
    bytes: u64,
}

/// The chunks that one stream gathers.
pub(super) struct Gathered {
    waiting: Waiting,
    /// Bytes of memory that all streams of the process gathered.
    account: Arc<AtomicU64>,
    drawn: u64,
    limit: u64,
    /// The counts of the batch before.
    #[cfg(feature = "planted-bugs")]
    pub(super) before: Vec<u16>,
}

impl Drop for Gathered {
    fn drop(&mut self) {
        self.account.fetch_sub(self.drawn, Relaxed);
    }
}

impl Gathered {
    /// Gathers until the account has more than `limit` bytes.
    pub(super) fn new(account: &Arc<AtomicU64>, limit: u64) -> Gathered {
        Gathered {
            waiting: Waiting::default(),
            account: account.clone(),
            drawn: 0,
            limit,
            #[cfg(feature = "planted-bugs")]
            before: Vec::new(),
        }
    }

    /// The number of the chunk that waits with this fingerprint, and with these bytes if they are
    /// compared.
    pub(super) fn find(
        &self,
        fingerprint: &Fingerprint,
        bytes: &[u8],
        compares: bool,
    ) -> Option<u32> {
        let number = *self.waiting.known.get(fingerprint)?;
        let same = !compares || self.waiting.chunks.get(number as usize)?.bytes() == bytes;
        same.then_some(number)
    }

    /// A batch is gathered whose buffer chunks will share.
    pub(super) fn shares(&mut self, batch: &Pooled) {
        self.waiting.bytes += batch.bytes().len() as u64;
    }

    /// The next chunk is new. Gives its number.
    pub(super) fn add(
        &mut self,
        fingerprint: Fingerprint,
        bytes: &[u8],
        shared: Option<(&Arc<Pooled>, Range<usize>)>,
    ) -> u32 {
        let number = self.waiting.chunks.len() as u32;
        self.waiting.bytes += CHUNK_BYTES;
        let content = match shared {
            Some((of, range)) => Content::Shared(of.clone(), range),
            None => {
                self.waiting.bytes += bytes.len() as u64;
                Content::Own(bytes.into())
            }
        };
        self.waiting.chunks.push(NewChunk { fingerprint, count: 0, content });
        self.waiting.known.insert(fingerprint, number);
        number
    }

    /// The stream goes on.
    pub(super) fn step(&mut self, step: Step) {
        if let Step::Waiting(number) = step
            && let Some(chunk) = self.waiting.chunks.get_mut(number as usize)
        {
            chunk.count = chunk.count.saturating_add(1);
        }
        self.waiting.bytes += STEP_BYTES;
        self.waiting.steps.push(step);
    }

    /// True when it is time to place what was gathered. `more` bytes wait with it elsewhere.
    pub(super) fn is_full(&mut self, more: u64) -> bool {
        let drawn = self.waiting.bytes + more;
        self.account.fetch_add(drawn, Relaxed);
        self.account.fetch_sub(std::mem::replace(&mut self.drawn, drawn), Relaxed);
        !self.is_empty() && self.account.load(Relaxed) > self.limit
    }

    /// True when nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.steps.is_empty()
    }

    /// Takes out what was gathered. Its memory stays on the account until [`is_full`](Self::is_full)
    /// is asked again.
    pub(super) fn take(&mut self) -> Waiting {
        std::mem::take(&mut self.waiting)
    }
}

impl Waiting {
    /// The containers that the chunks fill, those with the highest counts first: of each its class,
    /// and the numbers of its chunks in the order in which they came. A container takes whole rows
    /// of so many bytes on its nodes: one that has its bytes begins no other row for one chunk more.
    pub(super) fn containers(
        &self,
        capacity: usize,
        row: impl Fn(Class) -> usize,
    ) -> Vec<(Class, Vec<u32>)> {
        let mut of: BTreeMap<u16, u64> = BTreeMap::new();
        self.chunks.iter().for_each(|chunk| *of.entry(chunk.count).or_default() += 1);
        let border = ClassBorder::of(&of);
        let count = |number: &u32| self.chunks[*number as usize].count;
        let mut sorted: Vec<u32> = (0..self.chunks.len() as u32).collect();
        // Stable: chunks with one count stay in the order in which they came.
        sorted.sort_by_key(|number| std::cmp::Reverse(count(number)));
        let mut all: Vec<(Class, Vec<u32>)> = Vec::new();
        let mut filled = 0;
        for number in sorted {
            let (class, bytes) =
                (border.class(count(&number)), self.chunks[number as usize].bytes().len());
            let row = row(class);
            let rows = |chunks, bytes| stored_bytes(chunks, bytes).next_multiple_of(row);
            let fits = |chunks: usize| {
                let now = rows(chunks, filled);
                filled + bytes <= capacity
                    && chunks < SLOTS_MAX
                    && (now <= capacity || rows(chunks + 1, filled + bytes) == now)
            };
            match all.last_mut() {
                Some((of, numbers)) if *of == class && fits(numbers.len()) => {
                    numbers.push(number);
                    filled += bytes;
                }
                _ => {
                    all.push((class, vec![number]));
                    filled = bytes;
                }
            }
        }
        // Chunks that a restore needs together lie together.
        all.iter_mut().for_each(|(_, numbers)| numbers.sort_unstable());
        all
    }
}

/// Bytes of a container of so many chunks with so many bytes, when it is not compressed.
fn stored_bytes(chunks: usize, bytes: usize) -> usize {
    let groups = bytes.div_ceil(GROUP_BYTES);
    HEADER_BYTES + groups * GROUP_ENTRY_BYTES + chunks * CHUNK_ENTRY_BYTES + bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(n: u8) -> Fingerprint {
        Fingerprint([n; 16])
    }

    /// A stream that names chunks by these letters, of ten bytes each.
    fn gather(gathered: &mut Gathered, letters: &str) {
        for letter in letters.bytes() {
            let number = gathered
                .find(&print(letter), &[letter; 10], true)
                .unwrap_or_else(|| gathered.add(print(letter), &[letter; 10], None));
            gathered.step(Step::Waiting(number));
        }
    }

    fn planned(waiting: &Waiting, capacity: usize) -> Vec<(Class, String)> {
        let letter = |&number: &u32| char::from(waiting.chunks[number as usize].bytes()[0]);
        let all = waiting.containers(capacity, |_| 1 << 20).into_iter();
        all.map(|(class, numbers)| (class, numbers.iter().map(letter).collect())).collect()
    }

    #[test]
    fn the_example_of_the_paper_is_sorted_as_there() {
        // Figure 2, and stripes of four chunks as in figure 4.
        let mut gathered = Gathered::new(&Arc::default(), 0);
        gather(&mut gathered, "ABCDEFAFGHIJKALMNOPGQRHSTUVWXAAFYZHH");
        let found = planned(&gathered.take(), 40);
        // A, five times, and H, four times, are less than a tenth of 26; F has three.
        assert_eq!(found[0], (Class::Hot, "AH".into()));
        assert_eq!(found[1], (Class::Baseline, "FG".into()));
        assert_eq!(found[2], (Class::Cold, "BCDE".into()));
        assert_eq!(found.len(), 2 + 22_usize.div_ceil(4));
    }

    #[test]
    fn a_container_that_has_its_bytes_begins_no_row_for_one_chunk() {
        let mut gathered = Gathered::new(&Arc::default(), 0);
        for n in 0..400u32 {
            let mut print = [0; 16];
            print[..4].copy_from_slice(&n.to_le_bytes());
            let number = gathered.add(Fingerprint(print), &[1; 4096], None);
            gathered.step(Step::Waiting(number));
        }
        let waiting = gathered.take();
        let sizes = |row| -> Vec<usize> {
            let all = waiting.containers(100 << 12, |_| row).into_iter();
            all.map(|(_, numbers)| numbers.len()).collect()
        };
        // With its metadata a hundredth chunk ends in the third row, or begins the fourth.
        assert_eq!(sizes(34 << 12), [100; 4]);
        assert_eq!(stored_bytes(100, 100 << 12).div_ceil(101 << 12), 1);
        assert_eq!(sizes(20 << 12), [100; 4], "five rows are no more than the capacity");
        let row = stored_bytes(99, 99 << 12).next_multiple_of(8) / 2;
        assert_eq!(sizes(row.next_multiple_of(8)), [100; 4], "less than the capacity is taken");
        assert_eq!(sizes((100 << 12) + 16), [99, 99, 99, 99, 4]);
    }

    #[test]
    fn bytes_are_compared_when_they_are_to_be() {
        let mut gathered = Gathered::new(&Arc::default(), 0);
        gather(&mut gathered, "A");
        assert_eq!(gathered.find(&print(b'A'), b"other", false), Some(0));
        assert_eq!(gathered.find(&print(b'A'), b"other", true), None);
    }

    #[test]
    fn streams_draw_from_one_account_and_give_back() {
        let account = Arc::new(AtomicU64::new(0));
        let (mut one, mut other) = (Gathered::new(&account, 500), Gathered::new(&account, 500));
        gather(&mut one, "AB");
        assert!(!one.is_full(0));
        gather(&mut other, "C");
        // Both together are too much; whoever finds out places its own.
        assert!(other.is_full(0) && !other.is_empty());
        drop(other.take());
        assert!(!other.is_full(0) && !one.is_full(0));
        assert!(one.is_full(100));
        drop((one, other));
        assert_eq!(account.load(Relaxed), 0);
    }
}
