//! A window of references: what files want, gathered until memory is full, then written in the order
//! of places.

use std::sync::Arc;

use onefold_core::{Fingerprint, Result};

use super::{
    keep::keep_equal,
    ledger::Ledger,
    plan::{Planner, Range, Run},
    spread::Spread,
    target::RestoreTarget,
    threads,
};
use crate::{
    container::{ChunkReader, ContainerReader},
    format::recipe::Part,
    operations_log::{Archive, Domain},
    stream::Verify,
    tables::Tables,
};

/// Memory for a chunk: its fingerprint, and its range in the plan.
const CHUNK_BYTES: usize = size_of::<Fingerprint>() + size_of::<Range>();

/// Memory for a run: itself, and its share of a group and of the keys by which it is sorted.
const RUN_BYTES: usize = size_of::<Run>() + 128;

/// Memory for a file, beside what the caller holds.
const FILE_BYTES: usize = 64;

/// Gathers files and their content, and writes it in the order of places.
pub struct RestoreWindow {
    archive: Arc<Archive>,
    tables: Arc<Tables>,
    domain: Arc<Domain>,
    container_reader: ContainerReader,
    chunk_reader: ChunkReader,
    verify: Verify,
    in_place: bool,
    threads: usize,
    memory: usize,
    used: usize,
    runs: Vec<Run>,
    fingerprints: Vec<Fingerprint>,
    ledger: Ledger,
}

impl RestoreWindow {
    /// Windows of so many bytes of memory; each of `threads` threads takes a few MiB more. The
    /// caller keeps the tables alive: a reader of the archive lives as long as this value.
    #[must_use]
    pub fn new(
        archive: &Arc<Archive>,
        (tables, domain): (&Arc<Tables>, &Arc<Domain>),
        (verify, in_place): (Verify, bool),
        memory: usize,
        threads: usize,
    ) -> RestoreWindow {
        #[cfg_attr(not(feature = "planted-bugs"), allow(unused_mut))]
        let mut ledger = Ledger::default();
        #[cfg(feature = "planted-bugs")]
        {
            ledger.is_hasty = !archive.keeps(crate::rules::Rule::FinishedAfterLastRange);
        }
        let mut chunk_reader = ChunkReader::default();
        chunk_reader.domain = Some(domain.number());
        RestoreWindow {
            archive: archive.clone(),
            tables: tables.clone(),
            domain: domain.clone(),
            container_reader: ContainerReader::new(archive.clone()),
            chunk_reader,
            verify,
            in_place,
            threads,
            memory,
            used: 0,
            runs: Vec::new(),
            fingerprints: Vec::new(),
            ledger,
        }
    }

    /// The next file; gives its number. `held` is the memory that the caller holds for it.
    pub fn file(&mut self, held: usize) -> usize {
        self.used += FILE_BYTES + held;
        self.ledger.push()
    }

    /// The caller holds so much memory more, until the window is written.
    pub fn hold(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// A part of the content of the last file, from byte `at` on. Zeroes and holes are the
    /// caller's.
    pub fn part(&mut self, at: u64, part: Part) {
        let Part::Run { first, bytes, fingerprints } = part else { return };
        let Some(file) = self.ledger.numbers().next_back() else { return };
        let from = self.fingerprints.len();
        self.used += RUN_BYTES + fingerprints.len() * CHUNK_BYTES;
        self.fingerprints.extend(fingerprints);
        let fingerprints = from..self.fingerprints.len();
        self.runs.push(Run { first, bytes, file, at, fingerprints });
    }

    /// All content of the last file was given.
    pub fn end_file(&mut self) {
        self.ledger.end();
    }

    /// The content of the last file can't be read, for this reason.
    pub fn lose(&mut self, error: onefold_core::Error) {
        if let Some(file) = self.ledger.numbers().next_back() {
            self.ledger.lose(file, error);
        }
    }

    /// True when the memory is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.used >= self.memory
    }

    /// The files that are not finished.
    #[must_use]
    pub fn files(&self) -> std::ops::Range<usize> {
        self.ledger.numbers()
    }

    /// Writes what was gathered, and finishes the files whose content was given to its end. A last
    /// one that goes on keeps its number.
    ///
    /// # Errors
    /// Those of the target and of the system. What is lost is told to the target.
    pub fn write(&mut self, target: &dyn RestoreTarget) -> Result<()> {
        let planner = Planner::new(
            &self.tables,
            &self.container_reader,
            &mut self.chunk_reader,
            &self.ledger,
        );
        let mut plan = planner.plan(&mut self.runs, &self.fingerprints)?;
        let (ledger, threads) = (&self.ledger, self.threads);
        let numbers: Vec<usize> = ledger.numbers().collect();
        if self.in_place {
            keep_equal((&self.archive, &self.domain), &mut plan, ledger, threads, target)?;
            threads::each(threads, numbers.len(), &|(): &mut (), n| {
                target.begin(numbers[n], ledger.waits(numbers[n]))
            })?;
            target.begun()?;
        }
        plan.sort();
        threads::each(threads, numbers.len(), &|(): &mut (), n| ledger.settle(numbers[n], target))?;
        let (archive, container_reader) = (&*self.archive, &self.container_reader);
        let (plan, verify, domain) = (&plan, self.verify, &*self.domain);
        Spread { archive, domain, container_reader, plan, ledger, verify, target }.all(threads)?;
        self.ledger.next_window();
        self.runs.clear();
        self.fingerprints.clear();
        self.used = 0;
        Ok(())
    }
}
