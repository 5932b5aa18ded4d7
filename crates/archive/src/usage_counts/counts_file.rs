//! A file of usage counts, in the form that the archive's label says: a list of all, or pages.

use std::{collections::BTreeSet, sync::Arc, vec::IntoIter};

use onefold_core::{File, Result};

use super::{
    list::{ListReader, ListWriter},
    names::counts_name,
    pages::{PagesReader, PagesWriter, has_pages},
    proof::Written,
};
use crate::{
    container::Pace,
    format::{ContainerId, names::fresh},
    operations_log::Archive,
    tables::NamedCounts,
};

/// Writes all counts that there are.
pub(super) enum CountsWriter {
    List(ListWriter),
    Pages(PagesWriter),
}

impl CountsWriter {
    pub(super) fn create(archive: &Arc<Archive>, number: u64) -> Result<CountsWriter> {
        CountsWriter::over(archive, fresh(&*archive.files, &counts_name(number))?, number)
    }

    pub(super) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn File>,
        number: u64,
    ) -> Result<CountsWriter> {
        Ok(match archive.label().counts_in_pages {
            true => CountsWriter::Pages(PagesWriter::over(archive, file, number)),
            false => CountsWriter::List(ListWriter::over(archive, file, number)?),
        })
    }

    /// Counts of the next container, in the order of their numbers.
    pub(super) fn push(&mut self, id: ContainerId, counts: &[u16]) -> Result<()> {
        match self {
            CountsWriter::List(list) => list.push(id, counts),
            CountsWriter::Pages(pages) => pages.push(id, counts),
        }
    }

    /// Ends the file, durable on return.
    pub(super) fn finish(self) -> Result<Written> {
        match self {
            CountsWriter::List(list) => list.finish(),
            CountsWriter::Pages(pages) => pages.finish(),
        }
    }
}

/// Reads all counts in the order of the containers' numbers. Some may be of containers that are gone.
pub(crate) enum CountsReader {
    /// A list.
    List(ListReader),
    /// Pages: those that come next, and the counts that come before them.
    Pages(PagesReader, IntoIter<u64>, IntoIter<(ContainerId, Vec<u16>)>),
}

impl CountsReader {
    /// Opens the counts; all of them are looked at once, so that damage is known before anything is
    /// made of it.
    pub(crate) fn open(
        archive: &Arc<Archive>,
        counts: NamedCounts,
        pace: &Pace,
    ) -> Result<CountsReader> {
        CountsReader::over(archive, archive.files.open(&counts_name(counts.number))?, counts, pace)
    }

    pub(crate) fn over(
        archive: &Arc<Archive>,
        file: Arc<dyn File>,
        counts: NamedCounts,
        pace: &Pace,
    ) -> Result<CountsReader> {
        match form(archive, file, counts, pace)? {
            Counts::List(file) => {
                ListReader::over(archive, file, counts, pace).map(CountsReader::List)
            }
            Counts::Pages(pages) => {
                pages.look()?;
                let all: Vec<u64> = pages.directory.pages.keys().copied().collect();
                Ok(CountsReader::Pages(pages, all.into_iter(), Vec::new().into_iter()))
            }
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<(ContainerId, Vec<u16>)>> {
        match self {
            CountsReader::List(list) => list.next(),
            CountsReader::Pages(pages, left, counts) => loop {
                if let Some(next) = counts.next() {
                    return Ok(Some(next));
                }
                let Some(page) = left.next() else { return Ok(None) };
                *counts = pages.page(page)?.into_iter();
            },
        }
    }
}

/// A file of counts, by its form.
enum Counts {
    List(Arc<dyn File>),
    Pages(PagesReader),
}

fn form(
    archive: &Arc<Archive>,
    file: Arc<dyn File>,
    counts: NamedCounts,
    pace: &Pace,
) -> Result<Counts> {
    let mut head = [0; 8];
    let n = file.read_at(0, &mut head)?;
    match has_pages(&head[..n]) {
        true => PagesReader::over(archive, file, counts, pace).map(Counts::Pages),
        false => Ok(Counts::List(file)),
    }
}

/// The pages of counts, of which none is looked at yet; `None` where the counts are a list.
///
/// # Errors
/// The errors of [`PagesReader::over`]; `NotFound` without counts.
pub(super) fn pages(
    archive: &Arc<Archive>,
    counts: NamedCounts,
    pace: &Pace,
) -> Result<Option<PagesReader>> {
    Ok(match form(archive, archive.files.open(&counts_name(counts.number))?, counts, pace)? {
        Counts::List(_) => None,
        Counts::Pages(pages) => Some(pages),
    })
}

/// The numbers of the files that these counts lie in.
///
/// # Errors
/// The errors of [`pages`].
pub(crate) fn files_of_counts(
    archive: &Arc<Archive>,
    counts: NamedCounts,
) -> Result<BTreeSet<u64>> {
    let number = counts.number;
    if !archive.label().counts_in_pages || number == 0 {
        return Ok(BTreeSet::from([number]));
    }
    let pages = pages(archive, counts, &Pace::default())?;
    let files = pages.into_iter().flat_map(|pages| pages.directory.files.into_keys());
    Ok(files.chain([number]).collect())
}
