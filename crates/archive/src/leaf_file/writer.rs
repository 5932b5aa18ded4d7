//! Leaves written for a snapshot, or ahead of one.

use std::{collections::BTreeSet, sync::Arc};

use onefold_core::{File, Files, Result};

use super::{
    body::LeafBody,
    pages::{Free, LeafFile},
    place::{LEAVES, LeafPlace, PAGES_MAX},
    reader::seal,
};
use crate::{
    format::{Identity, names::open_or_create},
    rules::Rule,
    settings::Settings,
};

/// Writes the leaves of a snapshot.
pub(crate) struct LeafWriter<'a> {
    files: &'a dyn Files,
    identity: &'a Identity,
    settings: &'a Settings,
    /// The snapshot's number.
    number: u64,
    /// No snapshot names a leaf, and none was written ahead of one.
    is_first: bool,
    free: Free,
    file: Option<Arc<dyn File>>,
    /// First pages of the leaves that were written.
    written: BTreeSet<u32>,
}

impl<'a> LeafWriter<'a> {
    /// For snapshot `number`, which is made in `epoch` and comes after the one that `state` is of;
    /// `unchanged` are the leaves that both name.
    pub(crate) fn new(
        files: &'a dyn Files,
        identity: &'a Identity,
        settings: &'a Settings,
        (number, epoch): (u64, u32),
        state: &LeafFile,
        unchanged: &[LeafPlace],
    ) -> LeafWriter<'a> {
        LeafWriter {
            files,
            identity,
            settings,
            number,
            is_first: state.is_empty() && unchanged.is_empty(),
            free: state.free(settings, epoch, unchanged),
            file: None,
            written: BTreeSet::new(),
        }
    }

    /// Writes the first copy of a leaf.
    pub(crate) fn first_copy(&mut self, body: &LeafBody<'_>) -> Result<LeafPlace> {
        // A leaf of 512 entries, each of a frame at most, has fewer than the file can have.
        let pages =
            u32::try_from(body.pages(self.identity.tail())).unwrap_or(PAGES_MAX).min(PAGES_MAX / 2);
        let page = self.free.take(2 * pages)?;
        let place = LeafPlace { page, pages, checksum: 0 };
        let mut bytes = body.encode(self.number, place);
        let checksum = seal(self.identity, place, &mut bytes)?;
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(open_or_create(self.files, LEAVES, self.is_first)?),
        };
        file.write_at(place.at(0), &bytes)?;
        self.written.insert(page);
        Ok(LeafPlace { checksum, ..place })
    }

    /// Writes the second copy of a leaf, if the first one was written for this snapshot.
    pub(crate) fn second_copy(&self, place: LeafPlace, body: &LeafBody<'_>) -> Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.written.contains(&place.page)) else {
            return Ok(());
        };
        let mut bytes = body.encode(self.number, place);
        seal(self.identity, place, &mut bytes)?;
        file.write_at(place.at(1), &bytes)
    }

    /// True when the leaf was written for this snapshot.
    pub(crate) fn has_written(&self, place: LeafPlace) -> bool {
        self.written.contains(&place.page)
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&self) -> Result<()> {
        match &self.file {
            Some(file) if self.settings.keeps(Rule::LeavesBeforeDirectory) => file.sync(),
            _ => Ok(()),
        }
    }
}
