//! One stream's view of the ingesting process: chunks are looked up, new ones get a place in its
//! containers, and what names them is written on.

use std::{ops::Range, sync::Arc};

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::{
    batch::{Batch, Next},
    gathered::Gathered,
    ingest::{Ingest, Lookup},
};
use crate::{
    chunk_index::ByFingerprint,
    filter_chain::{Answer, Counts, Query, address_of},
    format::{
        Address,
        container::{ContainerKind, OpenContainer},
        domain::FIRST_DOMAIN,
        recipe::{End, RecipeWriter},
        record::Pieces,
    },
    memory::Pooled,
    operations_log::{Archive, Domain, EpochGuard, domain_of},
    rules::Rule,
    settings::FilterName,
    tables::Tables,
};

/// A recipe that is being written, and where its pieces go.
#[derive(Default)]
pub struct Writing {
    recipe: RecipeWriter,
    pieces: Vec<Pieces>,
}

/// Receives sealed containers.
pub(crate) type Sink<'a> = dyn FnMut(OpenContainer) -> Result<()> + 'a;

/// Stores a piece of a recipe or a mapping; gives its place.
pub(crate) type PieceWriter<'a> = dyn FnMut(Vec<u8>) -> Result<Address> + 'a;

/// Receives the places of a stream's chunks, in their order.
pub(crate) trait Target {
    /// The next chunk.
    fn chunk(
        &mut self,
        address: Address,
        fingerprint: Fingerprint,
        bytes: u32,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()>;

    /// The next zeroes.
    fn zeroes(&mut self, bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()>;

    /// The next hole; zeroes where holes are nothing of their own.
    fn hole(&mut self, bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        self.zeroes(bytes, write_piece)
    }

    /// A place that the source marked.
    fn mark(&mut self, _: &mut PieceWriter<'_>) -> Result<()> {
        Ok(())
    }

    /// Bytes of memory that wait for marks to come.
    fn waiting(&self) -> u64 {
        0
    }
}

impl Target for Writing {
    fn chunk(
        &mut self,
        address: Address,
        fingerprint: Fingerprint,
        bytes: u32,
        write_piece: &mut PieceWriter<'_>,
    ) -> Result<()> {
        let Writing { recipe, pieces } = self;
        recipe.chunk(address, fingerprint, bytes, &mut |piece| {
            write_piece(piece).map(|address| push_piece(pieces, address))
        })
    }

    fn zeroes(&mut self, bytes: u64, write_piece: &mut PieceWriter<'_>) -> Result<()> {
        let Writing { recipe, pieces } = self;
        recipe.zeroes(bytes, &mut |piece| {
            write_piece(piece).map(|address| push_piece(pieces, address))
        })
    }
}

fn push_piece(pieces: &mut Vec<Pieces>, address: Address) {
    match pieces.last_mut() {
        Some(last)
            if last.container == address.container && last.first + last.count == address.slot =>
        {
            last.count += 1
        }
        _ => pieces.push(Pieces { container: address.container, first: address.slot, count: 1 }),
    }
}

/// One stream of the ingesting process. Chunks that it took as duplicates are not freed before it
/// ends.
pub struct Session {
    pub(crate) ingest: Arc<Ingest>,
    pub(super) number: u64,
    pub(super) failures: u64,
    /// All that the stream stores belongs to it.
    pub(crate) domain: Arc<Domain>,
    guard: EpochGuard,
    data: Option<OpenContainer>,
    recipes: Option<OpenContainer>,
    /// New chunks that wait until they are sorted, in an archive that gathers them.
    pub(super) gathered: Option<Gathered>,
    /// Copies of sealed containers that may not be written yet; kept only when bytes are compared.
    unwritten: Vec<Arc<OpenContainer>>,
    pub(super) compares: bool,
    pub(super) counts: Counts,
    /// Bytes of content so far.
    pub bytes: u64,
    /// Bytes of new chunks so far.
    pub new_bytes: u64,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.ingest.end(self.number);
    }
}

impl Session {
    /// Becomes the ingesting process, for one stream. Waits for another one when `wait` is set.
    ///
    /// # Errors
    /// `Busy`, and those of the system.
    pub fn begin(archive: &Arc<Archive>, wait: bool) -> Result<Session> {
        Session::on(&Ingest::begin(archive, wait, false)?)
    }

    /// Another stream of the ingesting process, in the archive's first domain.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn on(ingest: &Arc<Ingest>) -> Result<Session> {
        Session::in_domain(ingest, FIRST_DOMAIN)
    }

    /// The same in a domain.
    ///
    /// # Errors
    /// `Denied`: the domain was erased, or is not there. Errors of the system.
    pub fn in_domain(ingest: &Arc<Ingest>, domain: u32) -> Result<Session> {
        let limit = ingest.archive.label().late.and_then(|rad| rad.gathered_bytes());
        let gathered = limit.map(|limit| Gathered::new(&ingest.gathered, limit));
        Session::with(ingest, gathered, domain)
    }

    /// A stream whose chunks have places as they come, whatever the archive does with others: who
    /// waits for a volume's flush does not wait for more chunks. It begins in the first domain, and goes on in
    /// those of the volumes.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn of_volumes(ingest: &Arc<Ingest>) -> Result<Session> {
        Session::with(ingest, None, FIRST_DOMAIN)
    }

    fn with(ingest: &Arc<Ingest>, gathered: Option<Gathered>, domain: u32) -> Result<Session> {
        // The log is read first: it tells of data keys.
        let guard = EpochGuard::enter(&ingest.archive)?;
        let domain = domain_of(&ingest.archive, domain)?;
        Ok(Session {
            number: ingest.next_session(),
            failures: ingest.pending.lock().failures,
            compares: ingest.archive.settings.filters.contains(&FilterName::ByteCompare),
            ingest: ingest.clone(),
            domain,
            guard,
            data: None,
            recipes: None,
            gathered,
            unwritten: Vec::new(),
            counts: Counts::default(),
            bytes: 0,
            new_bytes: 0,
        })
    }

    /// The archive as of the beginning.
    #[must_use]
    pub fn tables(&self) -> &Arc<Tables> {
        &self.guard.tables
    }

    /// Counts of the filters' checks.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The domain of the stream, by which it is cut and fingerprinted.
    #[must_use]
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Goes on in another domain: what comes is stored there.
    ///
    /// # Errors
    /// The errors of the sink.
    pub(crate) fn go_on_in(&mut self, domain: &Arc<Domain>, sink: &mut Sink<'_>) -> Result<()> {
        if domain.number() != self.domain.number() {
            self.seal(sink)?;
            self.domain = domain.clone();
        }
        Ok(())
    }

    fn archive(&self) -> &Archive {
        &self.ingest.archive
    }

    /// Looks up a batch, places what is new, and writes the recipe on.
    ///
    /// # Errors
    /// Errors of the sink and of the system.
    pub fn add(&mut self, batch: &Batch, writing: &mut Writing, sink: &mut Sink<'_>) -> Result<()> {
        self.place(batch, writing, &ByFingerprint::default(), sink)
    }

    /// The same for any target; `placed` has the present chunks of the blocks that are rewritten.
    pub(crate) fn place(
        &mut self,
        batch: &Batch,
        target: &mut dyn Target,
        placed: &ByFingerprint<Address>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        if self.gathered.is_some() {
            return self.gather(batch, target, sink);
        }
        let ingest = self.ingest.clone();
        let lookup = &mut *ingest.lookup.lock();
        ingest.renew(lookup)?;
        let mut queries: Vec<Query<'_>> = Vec::with_capacity(batch.fingerprints.len());
        for (range, &fingerprint) in batch.chunks().zip(&batch.fingerprints) {
            queries.push(Query {
                fingerprint,
                bytes: &batch.bytes.bytes()[range],
                answer: Answer::WeakMaybe,
                certain: false,
            });
        }
        let near = self.near();
        let before = lookup.chain.counts();
        lookup.chain.look_up(&mut queries, &near, self.number, placed)?;
        self.counts.add(&lookup.chain.counts(), &before);
        let shared = self.may_share(batch, &queries).then_some(&batch.bytes);
        let mut queries = queries.iter().zip(batch.chunks());
        for piece in &batch.pieces {
            match piece {
                Next::Zeroes(bytes) => {
                    self.bytes = self.bytes.saturating_add(*bytes);
                    target.zeroes(*bytes, &mut |piece| self.piece(lookup, &piece, sink))?;
                }
                Next::Hole(bytes) => {
                    self.bytes = self.bytes.saturating_add(*bytes);
                    target.hole(*bytes, &mut |piece| self.piece(lookup, &piece, sink))?;
                }
                Next::Mark => target.mark(&mut |piece| self.piece(lookup, &piece, sink))?,
                Next::Chunk(_) => {
                    let Some((query, range)) = queries.next() else { break };
                    self.bytes = self.bytes.saturating_add(query.bytes.len() as u64);
                    let address = match address_of(query.answer).or_else(|| self.earlier(query)) {
                        Some(address) => {
                            self.ingest.auxiliary.lock().name(address.container, self.number);
                            address
                        }
                        None => {
                            let shared = shared.map(|bytes| (bytes, range));
                            self.store(lookup, query, shared, sink)?
                        }
                    };
                    let length = query.bytes.len() as u32;
                    target.chunk(address, query.fingerprint, length, &mut |piece| {
                        self.piece(lookup, &piece, sink)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// The containers whose bytes are only here, when bytes are compared.
    pub(super) fn near(&mut self) -> Vec<Arc<OpenContainer>> {
        if !self.compares {
            return Vec::new();
        }
        let auxiliary = self.ingest.auxiliary.lock();
        self.unwritten.retain(|open| !auxiliary.is_listed(open.id));
        self.unwritten
            .iter()
            .cloned()
            .chain(self.data.iter().map(|open| Arc::new(open.clone())))
            .collect()
    }

    /// The address of the same chunk earlier in the batch.
    fn earlier(&self, query: &Query<'_>) -> Option<Address> {
        let (address, certain) =
            self.ingest.auxiliary.lock().find(&query.fingerprint, self.number)?;
        if !certain {
            return None;
        }
        if self.compares {
            let open = self
                .data
                .iter()
                .chain(self.unwritten.iter().map(|open| &**open))
                .find(|open| open.id == address.container)?;
            return (open.bytes_of(address.slot)? == query.bytes).then_some(address);
        }
        Some(address)
    }

    /// True when containers may share the buffer of a batch instead of copying its new chunks: these
    /// are half of it or more, so that no container holds more than twice its bytes in memory.
    fn may_share(&self, batch: &Batch, queries: &[Query<'_>]) -> bool {
        let new = queries.iter().filter(|query| address_of(query.answer).is_none());
        let bytes: usize = new.map(|query| query.bytes.len()).sum();
        !self.compares && 2 * bytes >= batch.bytes.bytes().len()
    }

    fn store(
        &mut self,
        lookup: &mut Lookup,
        query: &Query<'_>,
        shared: Option<(&Arc<Pooled>, Range<usize>)>,
        sink: &mut Sink<'_>,
    ) -> Result<Address> {
        let capacity = self.archive().settings.container_bytes;
        if self.data.as_ref().is_some_and(|open| open.is_full(query.bytes.len(), capacity)) {
            self.seal_data(sink)?;
        }
        let open = match &mut self.data {
            Some(open) => open,
            none => {
                let (id, buffer) = (lookup.ids.next()?, self.ingest.archive.buffers.take());
                let open = OpenContainer::over(id, ContainerKind::Data, buffer, capacity);
                none.insert(open.of_domain(self.domain.number()))
            }
        };
        let rubbish = (!self.ingest.archive.keeps(Rule::StoredAsFingerprinted))
            .then(|| vec![0xee; query.bytes.len()]);
        let address = match (rubbish, shared) {
            (Some(rubbish), _) => open.push(query.fingerprint, &rubbish),
            (None, Some((of, range))) => open.share(query.fingerprint, of, range),
            (None, None) => open.push(query.fingerprint, query.bytes),
        };
        self.new_bytes += query.bytes.len() as u64;
        self.ingest.auxiliary.lock().insert(query.fingerprint, address, self.number);
        lookup.chain.learn(&query.fingerprint, address);
        Ok(address)
    }

    fn seal_data(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.data.take().map_or(Ok(()), |open| self.send(open, sink))
    }

    /// Gives a container of chunks away to be written.
    pub(super) fn send(&mut self, open: OpenContainer, sink: &mut Sink<'_>) -> Result<()> {
        if self.compares {
            self.unwritten.push(Arc::new(open.clone()));
        }
        sink(open)
    }

    /// Stores a piece of a recipe or a mapping.
    pub(super) fn piece(
        &mut self,
        lookup: &mut Lookup,
        piece: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<Address> {
        let capacity = self.archive().settings.container_bytes;
        if self.recipes.as_ref().is_some_and(|open| open.is_full(piece.len(), capacity))
            && let Some(open) = self.recipes.take()
        {
            sink(open)?;
        }
        let fingerprint = self.domain.fingerprinter.bytes(piece);
        let open = match &mut self.recipes {
            Some(open) => open,
            none => {
                let open = OpenContainer::new(lookup.ids.next()?, ContainerKind::Recipes, 0);
                none.insert(open.of_domain(self.domain.number()))
            }
        };
        Ok(open.push(fingerprint, piece))
    }

    /// Ends a recipe.
    ///
    /// # Errors
    /// Errors of the sink and of the system.
    pub fn end_recipe(
        &mut self,
        mut writing: Writing,
        sink: &mut Sink<'_>,
    ) -> Result<(Vec<Pieces>, End)> {
        self.place_gathered(&mut writing, sink)?;
        let ingest = self.ingest.clone();
        let lookup = &mut *ingest.lookup.lock();
        let Writing { recipe, mut pieces } = writing;
        let end = recipe.end(&mut |piece| {
            self.piece(lookup, &piece, sink).map(|address| push_piece(&mut pieces, address))
        })?;
        Ok((pieces, end))
    }

    /// How many containers [`seal`](Self::seal) would seal.
    pub(crate) fn open_containers(&self) -> u64 {
        u64::from(self.data.is_some()) + u64::from(self.recipes.is_some())
    }

    /// Seals the open containers, short as they are: a stream ends, or what there is of it counts.
    /// Chunks that were gathered have been placed.
    ///
    /// # Errors
    /// The errors of the sink; `Stopped` when chunks still wait for their places.
    pub fn seal(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        if self.gathered.as_ref().is_some_and(|gathered| !gathered.is_empty()) {
            return Err(Error::new(Kind::Stopped, "chunks of the stream have no places yet"));
        }
        self.seal_data(sink)?;
        self.recipes.take().map_or(Ok(()), sink)
    }
}
