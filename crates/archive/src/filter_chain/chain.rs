//! The chain: asks its filters about a batch of chunks, and skips by their answers.

use std::sync::Arc;

use onefold_core::{Fingerprint, Result};
use parking_lot::Mutex;

use super::{
    block_index::BlockIndexFilter,
    bloom::BloomFilter,
    byte_compare::ByteCompare,
    cache::ContainerCache,
    chunk_index::ChunkIndexFilter,
    container_cache::CacheFilter,
    filter::{Answer, Best, Filter, Known, Query, address_of},
};
use crate::{
    chunk_index::{Auxiliary, ByFingerprint, ChunkIndex},
    container::ContainerReader,
    format::{Address, container::OpenContainer, damage::is_damage},
    operations_log::Archive,
    rules::Rule,
    settings::FilterName,
    tables::Tables,
};

/// Chunks that are looked up together.
pub(crate) const BATCH_CHUNKS: usize = 1024;

/// Chunks that the first round asks of a filter that reads; each round asks twice as many.
const FIRST_ROUND: usize = 8;

/// Figures of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Chunks looked up.
    pub chunks: u64,
    /// Of them found in the auxiliary index, or earlier in their batch.
    pub auxiliary: u64,
    /// Duplicates.
    pub duplicates: u64,
    /// Index pages read.
    pub page_reads: u64,
    /// Metadata sections read.
    pub metadata_reads: u64,
    /// Hits that the container did not confirm.
    pub stale: u64,
}

impl Counts {
    /// Adds what was counted between two looks at a chain.
    pub(crate) fn add(&mut self, now: &Counts, before: &Counts) {
        self.chunks += now.chunks - before.chunks;
        self.auxiliary += now.auxiliary - before.auxiliary;
        self.duplicates += now.duplicates - before.duplicates;
        self.page_reads += now.page_reads - before.page_reads;
        self.metadata_reads += now.metadata_reads - before.metadata_reads;
        self.stale += now.stale - before.stale;
    }
}

/// The chain of one session, and the structures that its filters look at.
pub(crate) struct FilterChain {
    archive: Arc<Archive>,
    tables: Arc<Tables>,
    filters: Vec<Box<dyn Filter>>,
    pub(crate) index: ChunkIndex,
    cache: ContainerCache,
    container_reader: Arc<ContainerReader>,
    pub(crate) auxiliary: Arc<Mutex<Auxiliary>>,
    pub(crate) counts: Counts,
}

impl FilterChain {
    pub(crate) fn new(
        archive: Arc<Archive>,
        tables: Arc<Tables>,
        container_reader: Arc<ContainerReader>,
        auxiliary: Arc<Mutex<Auxiliary>>,
    ) -> Result<FilterChain> {
        let index = ChunkIndex::open(archive.clone(), &tables)?;
        let bloom = archive.settings.filters.contains(&FilterName::Bloom);
        let filters = archive.settings.filters.iter().map(|name| -> Box<dyn Filter> {
            match name {
                FilterName::BlockIndex => Box::new(BlockIndexFilter),
                FilterName::ContainerCache => Box::new(CacheFilter),
                FilterName::Bloom => Box::new(BloomFilter),
                FilterName::ChunkIndex => Box::new(ChunkIndexFilter { filtered: bloom }),
                FilterName::ByteCompare => Box::new(ByteCompare::default()),
            }
        });
        let filters = filters.collect();
        let cache = ContainerCache::new(archive.settings.cached_containers);
        Ok(FilterChain {
            archive,
            tables,
            filters,
            index,
            cache,
            container_reader,
            auxiliary,
            counts: Counts::default(),
        })
    }

    /// The figures so far.
    #[must_use]
    pub(crate) fn counts(&self) -> Counts {
        Counts { page_reads: self.index.page_reads, ..self.counts }
    }

    /// The index was imported: looks at the new files from now on.
    pub(crate) fn renew_index(&mut self, tables: &Tables) -> Result<()> {
        self.take_index(ChunkIndex::open(self.archive.clone(), tables)?);
        Ok(())
    }

    /// The same with files that are open already.
    pub(crate) fn take_index(&mut self, index: ChunkIndex) {
        let reads = self.index.page_reads;
        self.index = index;
        self.index.page_reads = reads;
    }

    /// Takes the tables as they are now: chunks that were seen before may be condemned or damaged
    /// by now.
    fn refresh_tables(&mut self) {
        let tables = self.archive.tables();
        let same = Arc::ptr_eq(&tables, &self.tables)
            || (tables.epoch == self.tables.epoch && tables.damaged == self.tables.damaged);
        if !same {
            self.cache = ContainerCache::new(self.archive.settings.cached_containers);
        }
        self.tables = tables;
    }

    /// Looks up a batch for a session: the address of each duplicate. Later chunks of a batch may
    /// be duplicates of earlier ones: that is for the caller.
    pub(crate) fn look_up(
        &mut self,
        queries: &mut [Query<'_>],
        unwritten: &[Arc<OpenContainer>],
        session: u64,
        placed: &ByFingerprint<Address>,
    ) -> Result<()> {
        self.refresh_tables();
        self.counts.chunks += queries.len() as u64;
        self.ask_auxiliary(queries, session);
        let compares = self.filters.iter().any(|filter| filter.best() == Best::Existing);
        let mut round = FIRST_ROUND;
        loop {
            let undecided: Vec<usize> =
                (0..queries.len()).filter(|&n| is_undecided(&queries[n], compares)).collect();
            if undecided.is_empty() {
                break;
            }
            // The rest is asked again when the containers that these lie in are known.
            let step = undecided.len().div_ceil(round).max(1);
            for (place, &n) in undecided.iter().enumerate() {
                self.ask(&mut queries[n], place % step == 0, (unwritten, placed), session)?;
            }
            round *= 2;
        }
        self.counts.duplicates +=
            queries.iter().filter(|query| address_of(query.answer).is_some()).count() as u64;
        Ok(())
    }

    fn ask_auxiliary(&mut self, queries: &mut [Query<'_>], session: u64) {
        let auxiliary = self.auxiliary.lock();
        for query in queries.iter_mut() {
            if let Some((address, certain)) = auxiliary.find(&query.fingerprint, session) {
                self.counts.auxiliary += 1;
                query.answer = Answer::StrongMaybe(address);
                query.certain = certain;
            }
        }
    }

    /// Asks the filters about one chunk; those that read only when it is its turn, and then to the
    /// end.
    fn ask(
        &mut self,
        query: &mut Query<'_>,
        may_read: bool,
        (unwritten, placed): (&[Arc<OpenContainer>], &ByFingerprint<Address>),
        session: u64,
    ) -> Result<()> {
        let FilterChain { tables, filters, index, cache, container_reader, archive, .. } = self;
        let mut known =
            Known { tables, index, cache, unwritten, placed, archive, container_reader };
        for filter in filters.iter_mut() {
            match query.answer {
                Answer::Existing(_) | Answer::NonExisting => break,
                Answer::StrongMaybe(_) if filter.best() != Best::Existing => continue,
                _ => {}
            }
            if filter.reads() && !may_read {
                return Ok(());
            }
            if address_of(query.answer).is_some() && !query.certain {
                break;
            }
            match filter.check(query, &mut known)? {
                // Nothing new.
                Answer::WeakMaybe => {}
                answer => (query.answer, query.certain) = (answer, answer == Answer::NonExisting),
            }
            if address_of(query.answer).is_some() && !query.certain {
                FilterChain::confirm(
                    query,
                    &mut known,
                    &self.auxiliary,
                    &mut self.counts,
                    session,
                )?;
            }
        }
        if address_of(query.answer).is_some() && !query.certain {
            FilterChain::confirm(query, &mut known, &self.auxiliary, &mut self.counts, session)?;
        }
        if query.answer == Answer::WeakMaybe {
            // Nobody knows it, and all were asked.
            query.answer = Answer::NonExisting;
        }
        Ok(())
    }

    /// Looks into the container before a hit becomes a reference. The look is the chain's last,
    /// artificial step too: it loads the container into the cache.
    fn confirm(
        query: &mut Query<'_>,
        known: &mut Known<'_>,
        auxiliary: &Mutex<Auxiliary>,
        counts: &mut Counts,
        session: u64,
    ) -> Result<()> {
        let Some(address) = address_of(query.answer) else { return Ok(()) };
        let own = auxiliary.lock().is_own(address.container, session);
        let looks = known.archive.keeps(Rule::HitConfirmed);
        if own || !looks || known.confirms(&query.fingerprint, address, counts)? {
            query.certain = true;
        } else {
            counts.stale += 1;
            (query.answer, query.certain) = (Answer::NonExisting, true);
        }
        Ok(())
    }

    /// Tells all filters of a chunk that was stored.
    pub(crate) fn learn(&mut self, fingerprint: &Fingerprint, address: Address) {
        self.filters.iter_mut().for_each(|filter| filter.learn(fingerprint, address));
    }
}

impl Known<'_> {
    /// True when the chunk at `address` has this fingerprint, is there, and is neither condemned
    /// nor damaged.
    fn confirms(
        &mut self,
        fingerprint: &Fingerprint,
        address: Address,
        counts: &mut Counts,
    ) -> Result<bool> {
        let closed = [
            (&self.tables.condemned, Rule::CondemnedNotReferenced),
            (&self.tables.damaged, Rule::DamagedNotReferenced),
        ];
        let closed = closed.map(|(bits, rule)| self.archive.keeps(rule).then_some(bits));
        for container in self.tables.places(address.container) {
            let container = match container {
                // A chunk that can't be looked up is stored anew.
                Err(error) if is_damage(&error) => continue,
                found => found?,
            };
            let home = container.stored.id;
            if !self.archive.may_share(self.tables, home, container.logged) {
                continue;
            }
            if !self.cache.holds(home) {
                counts.metadata_reads += 1;
                match self.container_reader.metadata(&container) {
                    Ok(metadata) => self.cache.insert(metadata, &closed),
                    // A chunk whose container can't show it is stored anew.
                    Err(error) if is_damage(&error) => continue,
                    Err(error) => return Err(error),
                }
            }
            if self.cache.shows(home, fingerprint, address) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn is_undecided(query: &Query<'_>, compares: bool) -> bool {
    match query.answer {
        Answer::WeakMaybe => true,
        Answer::StrongMaybe(_) => !query.certain || compares,
        Answer::Existing(_) | Answer::NonExisting => false,
    }
}
