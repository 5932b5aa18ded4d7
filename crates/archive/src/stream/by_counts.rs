//! Algorithm 1 of RAD: a stream gathers its new chunks with their counts, sorts them when it has
//! enough, and fills containers of one class each. Recipes and tree nodes wait: they are told of the
//! stream when all of its chunks have addresses.
//!
//! *Crash argument:* a chunk that waits has no address, so that nothing can name it. Once it has one
//! it is on its way in a container as that of any stream, and the stream's record comes behind all
//! containers.

use onefold_core::Result;

use super::{
    batch::{Batch, Next},
    gathered::{Step, Waiting},
    ingest::Lookup,
    session::{Session, Sink, Target},
};
use crate::{
    chunk_index::ByFingerprint,
    filter_chain::{Answer, Query, address_of},
    format::{
        Address,
        container::{ContainerKind, OpenContainer},
    },
    rules::Rule,
    tables::PLACE_ALIGN,
};

impl Session {
    /// Looks up a batch, gathers what is new, and places it when it is enough. Only for sessions that
    /// gather.
    pub(super) fn gather(
        &mut self,
        batch: &Batch,
        target: &mut dyn Target,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let ingest = self.ingest.clone();
        {
            let lookup = &mut *ingest.lookup.lock();
            ingest.renew(lookup)?;
            self.gather_batch(lookup, batch)?;
        }
        let full =
            self.gathered.as_mut().is_some_and(|gathered| gathered.is_full(target.waiting()));
        if full { self.place_gathered(target, sink) } else { Ok(()) }
    }

    fn gather_batch(&mut self, lookup: &mut Lookup, batch: &Batch) -> Result<()> {
        let Some(gathered) = &mut self.gathered else { return Ok(()) };
        let bytes = batch.bytes.bytes();
        let chunks: Vec<_> = batch.fingerprints.iter().copied().zip(batch.chunks()).collect();
        // What waits already is nowhere else.
        let waits = |(fingerprint, range): &(_, std::ops::Range<usize>)| {
            gathered.find(fingerprint, &bytes[range.clone()], self.compares).is_some()
        };
        let (waiting, asked): (Vec<_>, Vec<_>) = chunks.iter().partition(|chunk| waits(chunk));
        let waiting = waiting.len() as u64;
        let mut queries: Vec<Query<'_>> = asked
            .into_iter()
            .map(|(fingerprint, range)| Query {
                fingerprint: *fingerprint,
                bytes: &bytes[range.clone()],
                answer: Answer::WeakMaybe,
                certain: false,
            })
            .collect();
        let before = lookup.chain.counts();
        let near = self.near();
        lookup.chain.look_up(&mut queries, &near, self.number, &ByFingerprint::default())?;
        self.counts.add(&lookup.chain.counts(), &before);
        self.counts.chunks += waiting;
        self.counts.auxiliary += waiting;
        self.counts.duplicates += waiting;
        let Some(gathered) = &mut self.gathered else { return Ok(()) };
        let new = queries.iter().filter(|query| address_of(query.answer).is_none());
        let new: usize = new.map(|query| query.bytes.len()).sum();
        // Chunks share the buffer when they are half of it or more.
        let shared = (new > 0 && 2 * new >= bytes.len()).then_some(&batch.bytes);
        if shared.is_some() {
            gathered.shares(&batch.bytes);
        }
        let mut queries = queries.iter().peekable();
        let mut chunks = chunks.into_iter();
        for piece in &batch.pieces {
            let step = match *piece {
                Next::Zeroes(bytes) => {
                    self.bytes = self.bytes.saturating_add(bytes);
                    Step::Zeroes(bytes)
                }
                Next::Hole(bytes) => {
                    self.bytes = self.bytes.saturating_add(bytes);
                    Step::Hole(bytes)
                }
                Next::Mark => Step::Mark,
                Next::Chunk(_) => {
                    let Some((fingerprint, range)) = chunks.next() else { break };
                    let content = &bytes[range.clone()];
                    self.bytes = self.bytes.saturating_add(content.len() as u64);
                    // The query of this very place, unless the chunk waited before the batch.
                    let query = queries.next_if(|query| std::ptr::eq(query.bytes, content));
                    let stored = query.and_then(|query| address_of(query.answer));
                    match (stored, gathered.find(&fingerprint, content, self.compares)) {
                        (Some(address), _) => {
                            self.ingest.auxiliary.lock().name(address.container, self.number);
                            Step::Stored(address, fingerprint, content.len() as u32)
                        }
                        (None, Some(number)) => Step::Waiting(number),
                        (None, None) => {
                            self.new_bytes += content.len() as u64;
                            let shared = shared.map(|of| (of, range));
                            Step::Waiting(gathered.add(fingerprint, content, shared))
                        }
                    }
                }
            };
            gathered.step(step);
        }
        Ok(())
    }

    /// Places what was gathered, and tells the target of the stream up to here. Nothing waits when
    /// this returns.
    pub(crate) fn place_gathered(
        &mut self,
        target: &mut dyn Target,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let Some(gathered) = &mut self.gathered else { return Ok(()) };
        if gathered.is_empty() {
            return Ok(());
        }
        let mut waiting = gathered.take();
        #[cfg(feature = "planted-bugs")]
        if !self.ingest.archive.keeps(Rule::CountsOfTheirBatch) {
            super::broken::take_counts_of_another(&mut waiting.chunks, &mut gathered.before);
        }
        let mut addresses = self.fill_containers(&mut waiting, sink)?;
        if !self.ingest.archive.keeps(Rule::AddressesAwaited) {
            // As if each chunk had been told where it would lie without sorting.
            addresses.sort_unstable();
        }
        self.tell(&waiting, &addresses, target, sink)?;
        drop(waiting);
        if let Some(gathered) = &mut self.gathered {
            gathered.is_full(target.waiting());
        }
        Ok(())
    }

    /// Gives each chunk that waits a place in a container of its class; gives the addresses.
    fn fill_containers(
        &mut self,
        waiting: &mut Waiting,
        sink: &mut Sink<'_>,
    ) -> Result<Vec<Address>> {
        let ingest = self.ingest.clone();
        let capacity = ingest.archive.settings.container_bytes;
        let mut addresses = vec![Address::default(); waiting.chunks.len()];
        let row = |class| usize::from(ingest.archive.label().data(class)) * PLACE_ALIGN as usize;
        for (class, numbers) in waiting.containers(capacity, row) {
            let mut open = {
                // Other streams go on between two containers.
                let lookup = &mut *ingest.lookup.lock();
                let buffer = ingest.archive.buffers.take();
                let id = lookup.ids.next()?;
                let mut open = OpenContainer::over(id, ContainerKind::Data, buffer, capacity);
                let mut auxiliary = ingest.auxiliary.lock();
                for number in numbers {
                    let chunk = &waiting.chunks[number as usize];
                    let address = open.push(chunk.fingerprint, chunk.bytes());
                    addresses[number as usize] = address;
                    auxiliary.insert(chunk.fingerprint, address, self.number);
                    lookup.chain.learn(&chunk.fingerprint, address);
                }
                open
            };
            open.class = Some(class);
            self.send(open, sink)?;
        }
        Ok(addresses)
    }

    /// Tells the target of what was gathered.
    fn tell(
        &mut self,
        waiting: &Waiting,
        addresses: &[Address],
        target: &mut dyn Target,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let ingest = self.ingest.clone();
        let lookup = &mut *ingest.lookup.lock();
        let piece = &mut |piece: Vec<u8>| self.piece(lookup, &piece, sink);
        for &step in &waiting.steps {
            match step {
                Step::Zeroes(bytes) => target.zeroes(bytes, piece)?,
                Step::Hole(bytes) => target.hole(bytes, piece)?,
                Step::Mark => target.mark(piece)?,
                Step::Stored(address, fingerprint, bytes) => {
                    target.chunk(address, fingerprint, bytes, piece)?
                }
                Step::Waiting(number) => {
                    let (chunk, address) =
                        (&waiting.chunks[number as usize], addresses[number as usize]);
                    let bytes = chunk.bytes().len() as u32;
                    target.chunk(address, chunk.fingerprint, bytes, piece)?
                }
            }
        }
        Ok(())
    }
}
