//! A stream on its way in: cut and fingerprint ([`Cutting`]), look up and place ([`Session`]), pack and write ([`Stower`]), and at its end one record.
//!
//! Each stage is a value with methods that return, so that a simulation can do one after the other; [`pipeline`](crate::pipeline) gives them
//! threads.
//!
//! *Crash argument:* chunks and recipe are durable before the record that names them. Every 64 MiB the containers so far are made durable and
//! listed as unfinished, so that a repeat after a kill finds them. What a session took as a duplicate can't be freed before it ends: it stays in its
//! epoch.

use std::sync::Arc;

use onefold_core::{Error, Fingerprint, Hold, Kind, Lock, Result};
use parking_lot::Mutex;

use crate::{
    archive::{Archive, Stay, WRITER},
    chain::{Answer, BATCH_CHUNKS, Chain, Counts, Query, address_of},
    cut::{Cutter, Piece},
    format::{
        Address,
        container::{Holds, Open, Packed, Packer},
        recipe::{End, RecipeWriter},
        record::{Owner, Pieces, Record, Shape, Stored, Stream},
    },
    index::{self, auxiliary::Auxiliary},
    memory::Spare,
    segments::{Appender, Ids, Shelves},
    settings::Chunking,
    tables::valid_name,
};

/// Bytes of a batch, beside what the cutter must see.
const BATCH_BYTES: usize = 2 << 20;

/// Chunks with their fingerprints, in the order of the stream.
pub struct Batch {
    /// The chunks, and behind them what is of no account.
    bytes: Vec<u8>,
    pieces: Vec<Next>,
    fingerprints: Vec<Fingerprint>,
    /// Where the memory goes.
    spare: Arc<Spare>,
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.spare.give(std::mem::take(&mut self.bytes));
    }
}

#[derive(Clone, Copy)]
enum Next {
    Chunk(usize),
    Zeroes(u64),
}

/// Cuts a stream into batches.
pub struct Cutting {
    chunking: Chunking,
    cutter: Cutter,
    /// What was filled in, and how much of it.
    held: Vec<u8>,
    filled: usize,
    /// Up to here it is cut.
    cut: usize,
    /// Bytes of chunks before `cut` that were zeroes are not in `held` any more.
    pieces: Vec<Next>,
    chunks: usize,
    spare: Arc<Spare>,
}

impl Cutting {
    /// At the beginning of a stream.
    #[must_use]
    pub fn new(chunking: Chunking) -> Cutting {
        let cutter = Cutter::new(chunking);
        let held = vec![0; BATCH_BYTES + cutter.sees()];
        Cutting { chunking, cutter, held, filled: 0, cut: 0, pieces: Vec::new(), chunks: 0, spare: Arc::default() }
    }

    /// Where the next bytes go; never empty.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.held[self.filled..]
    }

    /// `n` bytes are there. Gives a batch when there is enough for one.
    pub fn advance(&mut self, n: usize) -> Option<Batch> {
        self.filled += n;
        self.cut_on(false);
        (self.filled == self.held.len() || self.chunks >= BATCH_CHUNKS).then(|| self.take())
    }

    /// Zeroes that nobody has to look at. They end a chunk, as a border does.
    pub fn zeroes(&mut self, bytes: u64) -> Option<Batch> {
        self.border();
        if bytes > 0 {
            self.pieces.push(Next::Zeroes(bytes));
        }
        (self.pieces.len() >= BATCH_CHUNKS).then(|| self.take())
    }

    /// The next bytes begin a chunk, whatever they are.
    pub fn border(&mut self) {
        self.cut_on(true);
        self.cutter = Cutter::new(self.chunking);
    }

    /// What is cut already.
    pub fn some(&mut self) -> Batch {
        self.take()
    }

    /// What is left.
    pub fn end(&mut self) -> Batch {
        self.border();
        self.take()
    }

    fn cut_on(&mut self, last: bool) {
        while let Some(piece) = self.cutter.next(&self.held[self.cut..self.filled], last) {
            match piece {
                Piece::Chunk(n) => {
                    self.pieces.push(Next::Chunk(n));
                    self.cut += n;
                    self.chunks += 1;
                }
                Piece::Zeroes(n) => {
                    // They leave the buffer, so that chunks lie one behind the other.
                    self.held.copy_within(self.cut + n..self.filled, self.cut);
                    self.filled -= n;
                    match self.pieces.last_mut() {
                        Some(Next::Zeroes(before)) => *before += n as u64,
                        _ => self.pieces.push(Next::Zeroes(n as u64)),
                    }
                }
            }
        }
    }

    fn take(&mut self) -> Batch {
        let mut rest = self.spare.take();
        rest.resize(self.held.len(), 0);
        rest[..self.filled - self.cut].copy_from_slice(&self.held[self.cut..self.filled]);
        let bytes = std::mem::replace(&mut self.held, rest);
        (self.filled, self.cut, self.chunks) = (self.filled - self.cut, 0, 0);
        Batch { bytes, pieces: std::mem::take(&mut self.pieces), fingerprints: Vec::new(), spare: self.spare.clone() }
    }
}

impl Batch {
    /// Computes the fingerprints. Takes what may be long: can be done on any thread.
    pub fn fingerprint(&mut self, archive: &Archive) {
        let mut at = 0;
        let chunks: Vec<&[u8]> = self
            .lengths()
            .map(|n| {
                at += n;
                &self.bytes[at - n..at]
            })
            .collect();
        self.fingerprints = archive.fingerprinter.chunks(&chunks);
    }

    fn lengths(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter_map(|piece| match piece {
            Next::Chunk(n) => Some(*n),
            Next::Zeroes(_) => None,
        })
    }
}

/// A recipe that is being written, and where its pieces go.
#[derive(Default)]
pub struct Writing {
    recipe: RecipeWriter,
    pieces: Vec<Pieces>,
}

/// What takes sealed containers on.
pub type Sink<'a> = dyn FnMut(Open) -> Result<()> + 'a;

/// The ingesting process: looks chunks up and places the new ones. One at a time in an archive.
pub struct Session {
    archive: Arc<Archive>,
    _writer: Box<dyn Lock>,
    stay: Stay,
    pub(crate) chain: Chain,
    pub(crate) auxiliary: Arc<Mutex<Auxiliary>>,
    ids: Ids,
    data: Option<Open>,
    recipes: Option<Open>,
    /// Copies of sealed containers that may not be written yet; kept only when bytes are compared.
    unwritten: Vec<Arc<Open>>,
    compares: bool,
    /// Bytes of content so far.
    pub bytes: u64,
    /// Bytes of new chunks so far.
    pub new_bytes: u64,
}

/// Where an import left the index; the session takes it over between two batches.
pub(crate) type Imported = Arc<Mutex<Option<(Arc<crate::tables::Tables>, u64)>>>;

impl Session {
    /// Becomes the ingesting process. Waits for another one when `wait` is set.
    ///
    /// # Errors
    /// `Busy`, and those of the system.
    pub fn begin(archive: &Arc<Archive>, wait: bool) -> Result<Session> {
        let writer = archive.files.lock(WRITER, Hold::Alone, wait).map_err(|error| match error.kind() {
            Kind::Busy => Error::new(Kind::Busy, "another put is running; wait for it, or leave out --no-wait"),
            _ => error,
        })?;
        let stay = archive.stay()?;
        let shelves = Arc::new(Shelves::new(archive.clone()));
        let mut auxiliary = Auxiliary::default();
        index::load_recent(&shelves, &stay.tables, &mut auxiliary)?;
        let auxiliary = Arc::new(Mutex::new(auxiliary));
        let chain = Chain::new(archive.clone(), stay.tables.clone(), shelves, auxiliary.clone())?;
        Ok(Session {
            ids: Ids::new(archive.clone(), Owner::Ingest),
            compares: archive.settings.filters.contains(&crate::settings::FilterName::ByteCompare),
            archive: archive.clone(),
            _writer: writer,
            stay,
            chain,
            auxiliary,
            data: None,
            recipes: None,
            unwritten: Vec::new(),
            bytes: 0,
            new_bytes: 0,
        })
    }

    /// The archive as of the beginning.
    #[must_use]
    pub fn tables(&self) -> &crate::tables::Tables {
        &self.stay.tables
    }

    /// What the filters did.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.chain.counts()
    }

    /// Looks up a batch, places what is new, and writes the recipe on.
    ///
    /// # Errors
    /// Those of the sink and the system.
    pub fn take(&mut self, batch: &Batch, writing: &mut Writing, sink: &mut Sink<'_>) -> Result<()> {
        let mut at = 0;
        let mut queries: Vec<Query<'_>> = Vec::with_capacity(batch.fingerprints.len());
        for (n, &fingerprint) in batch.lengths().zip(&batch.fingerprints) {
            queries.push(Query { fingerprint, bytes: &batch.bytes[at..at + n], answer: Answer::WeakMaybe, certain: false });
            at += n;
        }
        if self.compares {
            let auxiliary = self.auxiliary.lock();
            self.unwritten.retain(|open| !auxiliary.is_listed(open.id));
        }
        let mut near = self.unwritten.clone();
        if self.compares {
            near.extend(self.data.iter().map(|open| Arc::new(open.clone())));
        }
        self.chain.look_up(&mut queries, &near)?;
        let mut queries = queries.iter();
        for piece in &batch.pieces {
            match piece {
                Next::Zeroes(bytes) => {
                    self.bytes += bytes;
                    let mut pieces = std::mem::take(&mut writing.pieces);
                    let zeroed = writing.recipe.zeroes(*bytes, &mut |piece| self.piece(&piece, &mut pieces, sink));
                    writing.pieces = pieces;
                    zeroed?;
                }
                Next::Chunk(_) => {
                    let Some(query) = queries.next() else { break };
                    self.bytes += query.bytes.len() as u64;
                    let address = match address_of(query.answer).or_else(|| self.earlier(query)) {
                        Some(address) => address,
                        None => self.store(query, sink)?,
                    };
                    let mut pieces = std::mem::take(&mut writing.pieces);
                    let length = query.bytes.len() as u32;
                    let written =
                        writing.recipe.chunk(address, query.fingerprint, length, &mut |piece| self.piece(&piece, &mut pieces, sink));
                    writing.pieces = pieces;
                    written?;
                }
            }
        }
        Ok(())
    }

    /// The address of the same chunk earlier in the batch.
    fn earlier(&self, query: &Query<'_>) -> Option<Address> {
        let (address, certain) = self.auxiliary.lock().find(&query.fingerprint)?;
        if !certain {
            return None;
        }
        if self.compares {
            let open = self.data.iter().chain(self.unwritten.iter().map(|open| &**open)).find(|open| open.id == address.container)?;
            return (open.bytes_of(address.slot)? == query.bytes).then_some(address);
        }
        Some(address)
    }

    fn store(&mut self, query: &Query<'_>, sink: &mut Sink<'_>) -> Result<Address> {
        let capacity = self.archive.settings.container_bytes;
        if self.data.as_ref().is_some_and(|open| open.is_full(query.bytes.len(), capacity)) {
            self.seal_data(sink)?;
        }
        let open = match &mut self.data {
            Some(open) => open,
            none => none.insert(Open::over(self.ids.next()?, Holds::Data, self.archive.spare.take(), capacity)),
        };
        let address = open.push(query.fingerprint, query.bytes);
        self.new_bytes += query.bytes.len() as u64;
        self.auxiliary.lock().insert(query.fingerprint, address);
        self.chain.learn(&query.fingerprint, address);
        Ok(address)
    }

    fn seal_data(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        match self.data.take() {
            Some(open) => {
                if self.compares {
                    self.unwritten.push(Arc::new(open.clone()));
                }
                sink(open)
            }
            None => Ok(()),
        }
    }

    /// Stores a piece of a recipe.
    fn piece(&mut self, piece: &[u8], pieces: &mut Vec<Pieces>, sink: &mut Sink<'_>) -> Result<()> {
        let capacity = self.archive.settings.container_bytes;
        if self.recipes.as_ref().is_some_and(|open| open.is_full(piece.len(), capacity))
            && let Some(open) = self.recipes.take()
        {
            sink(open)?;
        }
        let open = match &mut self.recipes {
            Some(open) => open,
            none => none.insert(Open::new(self.ids.next()?, Holds::Recipes, 0)),
        };
        let address = open.push(self.archive.fingerprinter.bytes(piece), piece);
        match pieces.last_mut() {
            Some(last) if last.container == address.container && last.first + last.count == address.slot => last.count += 1,
            _ => pieces.push(Pieces { container: address.container, first: address.slot, count: 1 }),
        }
        Ok(())
    }

    /// Ends a recipe.
    ///
    /// # Errors
    /// Those of the sink and the system.
    pub fn end_recipe(&mut self, writing: Writing, sink: &mut Sink<'_>) -> Result<(Vec<Pieces>, End)> {
        let Writing { recipe, mut pieces } = writing;
        let end = recipe.end(&mut |piece| self.piece(&piece, &mut pieces, sink))?;
        Ok((pieces, end))
    }

    /// Seals the open containers, short as they are: a stream ends.
    ///
    /// # Errors
    /// Those of the sink.
    pub fn seal(&mut self, sink: &mut Sink<'_>) -> Result<()> {
        self.seal_data(sink)?;
        self.recipes.take().map_or(Ok(()), sink)
    }

    /// Takes over what the importer made of the index.
    pub(crate) fn renew(&mut self, imported: &Imported) -> Result<()> {
        let Some((tables, upto)) = imported.lock().take() else { return Ok(()) };
        self.chain.renew_index(&tables)?;
        self.auxiliary.lock().forget_listed(upto);
        Ok(())
    }
}

/// Packs and writes containers, and lists them every so many bytes.
pub struct Stower {
    archive: Arc<Archive>,
    appender: Appender,
    auxiliary: Arc<Mutex<Auxiliary>>,
    packer: Packer,
    /// Written and not listed.
    written: Vec<Stored>,
    written_bytes: u64,
    /// Listed as unfinished by this session's current stream.
    listed: Vec<crate::format::ContainerId>,
    added: u64,
    /// Seconds since 1970, for the list of unfinished containers.
    now: u64,
}

/// A stream that is complete but for its record.
pub struct Ended {
    /// Its name.
    pub name: String,
    /// What it is.
    pub shape: Shape,
    /// Seconds since 1970.
    pub created: u64,
    /// The recipe of its data, and what it ends with.
    pub data: (Vec<Pieces>, End),
    /// The recipe of a tree's listing.
    pub listing: Vec<Pieces>,
}

impl Stower {
    /// A stower for the session's containers.
    #[must_use]
    pub fn new(session: &Session, now: u64) -> Stower {
        let archive = session.archive.clone();
        Stower {
            appender: Appender::new(archive.clone(), Owner::Ingest),
            archive,
            auxiliary: session.auxiliary.clone(),
            packer: Packer::default(),
            written: Vec::new(),
            written_bytes: 0,
            listed: Vec::new(),
            added: 0,
            now,
        }
    }

    /// Packs a container and writes it. Now and then all are made durable and listed.
    ///
    /// # Errors
    /// `NoSpace`, and those of the system.
    pub fn stow(&mut self, open: Open) -> Result<()> {
        let packed = pack(&self.archive, open, &mut self.packer);
        self.write(&packed)?;
        self.archive.spare.give(packed.body);
        Ok(())
    }

    /// Writes a packed container.
    ///
    /// # Errors
    /// As [`stow`](Self::stow).
    pub fn write(&mut self, packed: &Packed) -> Result<()> {
        if self.appender.turns(packed) {
            self.list()?;
        }
        let stored = self.appender.write(packed)?;
        self.written_bytes += u64::from(stored.place.bytes);
        self.added += u64::from(stored.place.bytes);
        self.written.push(stored);
        if self.written_bytes >= self.archive.settings.sync_bytes { self.list() } else { Ok(()) }
    }

    /// Makes what was written durable, and lists it as unfinished.
    ///
    /// # Errors
    /// As [`stow`](Self::stow).
    pub fn list(&mut self) -> Result<()> {
        if self.written.is_empty() {
            return Ok(());
        }
        self.appender.sync()?;
        let containers = std::mem::take(&mut self.written);
        self.written_bytes = 0;
        let record = Record::Unfinished { containers: containers.clone(), at: self.now };
        let sequence = self.archive.commit(false, |_| Ok(vec![record]))?.sequence;
        self.listed.extend(containers.iter().map(|stored| stored.id));
        self.auxiliary.lock().list(data_of(&containers), sequence);
        Ok(())
    }

    /// Makes the stream durable, with its record: it is there when this returns. The session has been sealed and all containers stowed.
    ///
    /// # Errors
    /// `InvalidInput` for the name, `NoSpace`, and those of the system.
    pub fn commit(&mut self, ended: Ended) -> Result<Stream> {
        valid_name(&ended.name)?;
        self.appender.sync()?;
        let (recipe, end) = ended.data;
        let stream = Stream {
            shape: ended.shape,
            created: ended.created,
            bytes: end.bytes,
            added: self.added,
            chunks: end.chunks,
            recipe,
            listing: ended.listing,
        };
        let containers = std::mem::take(&mut self.written);
        let record =
            Record::Put { name: ended.name, stream: stream.clone(), containers: containers.clone(), finished: self.listed.clone() };
        let sequence = self.archive.commit(false, |_| Ok(vec![record]))?.sequence;
        self.listed.clear();
        self.auxiliary.lock().list(data_of(&containers), sequence);
        (self.written_bytes, self.added) = (0, 0);
        Ok(stream)
    }

    /// Gives back what this stream took of a full disk.
    pub fn abandon(&mut self) {
        // What can't be given back now is garbage for the collector.
        let _ = self.try_abandon();
    }

    fn try_abandon(&mut self) -> Result<()> {
        self.written.clear();
        self.appender.give_back()?;
        let listed = std::mem::take(&mut self.listed);
        if listed.is_empty() {
            return Ok(());
        }
        let mut places = Vec::new();
        self.archive.commit(true, |tables| {
            // The collector may have been there before.
            let there = listed.iter().filter_map(|id| tables.containers.get(id)).map(|container| &container.stored);
            places = there.clone().map(|stored| stored.place).collect();
            Ok(vec![Record::Abandoned { containers: there.map(|stored| stored.id).collect() }])
        })?;
        let shelves = Shelves::new(self.archive.clone());
        places.iter().try_for_each(|place| shelves.free(place))?;
        self.archive.commit(true, |_| Ok(vec![Record::Freed { places }])).map(|_| ())
    }

    /// Imports what is listed into the chunk index, and lets the session use it: for who has no threads.
    ///
    /// # Errors
    /// Those of the system.
    pub fn import(&mut self, session: &mut Session, all: bool) -> Result<bool> {
        let Some((tables, upto)) = index::import(&self.archive, &session.auxiliary, all)? else { return Ok(false) };
        session.chain.renew_index(&tables)?;
        session.auxiliary.lock().forget_listed(upto);
        Ok(true)
    }

    /// True when the auxiliary index is at its limit.
    #[must_use]
    pub fn must_import(&self) -> bool {
        self.auxiliary.lock().listed_len() > self.archive.settings.auxiliary_entries
    }

    /// Ends the session's writing: space taken ahead goes back.
    ///
    /// # Errors
    /// Those of the system.
    pub fn close(&mut self) -> Result<()> {
        self.appender.trim()
    }
}

/// Packs a container. Takes what may be long: can be done on any thread.
pub(crate) fn pack(archive: &Archive, open: Open, packer: &mut Packer) -> Packed {
    open.pack(&archive.identity, archive.tables().epoch, archive.label().compression, packer, &archive.spare)
}

/// The containers of chunks, as the auxiliary index wants them.
fn data_of(containers: &[Stored]) -> impl Iterator<Item = (crate::format::ContainerId, u32)> {
    containers.iter().filter(|stored| stored.holds == Holds::Data).map(|stored| (stored.id, stored.chunks))
}
