//! Segment files, and the containers that are appended to them.
//!
//! *Crash argument:* a container's id comes from a range that is recorded before it is used, and
//! the name of its segment is durable before the container is listed. Bytes that a crash leaves
//! behind the last listed container of a segment are overwritten by the next one, whose id was
//! recorded since: a frame that lists them and whose append failed can't come back after that.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, File, Kind, Result};

use super::{ids::last_segment, syncs::Syncs};
use crate::{
    format::{
        ContainerId,
        class::Class,
        container::{ContainerKind, Packed},
        names::segment_name,
        record::{Owner, Place, Record, Stored},
    },
    operations_log::{Archive, is_put},
    rules::Rule,
    tables::PLACE_ALIGN,
};

/// Bytes that are taken ahead at first; then as many as were written, up to the usual number. A put
/// of a few bytes would spend most of its time on taking 64 MiB and giving them back.
const AHEAD_LEAST: u64 = 1 << 20;

/// Segments that are taken one after the other whose files others made, where keys have roles.
const OTHERS_MAX: usize = 64;

/// Appends containers to the segments of one owner. There is one for each owner at a time.
pub(crate) struct Appender {
    archive: Arc<Archive>,
    owner: Owner,
    /// One of each class.
    open: BTreeMap<Class, OpenSegment>,
    syncs: Syncs,
}

struct OpenSegment {
    number: u32,
    file: Arc<dyn File>,
    /// Where this process began to append.
    begin: u64,
    end: u64,
    /// Space is taken up to here.
    taken: u64,
}

impl Appender {
    pub(crate) fn new(archive: Arc<Archive>, owner: Owner) -> Appender {
        let syncs = Syncs::new(archive.clone());
        Appender { archive, owner, open: BTreeMap::new(), syncs }
    }

    /// True when the container begins another segment. Containers in the segment before must be
    /// listed first: a segment that holds nothing listed, and is not its owner's last, counts
    /// as empty.
    pub(crate) fn begins_segment(&self, packed: &Packed, class: Class) -> bool {
        let needed = self.needed(packed, class);
        self.open.get(&class).is_none_or(|open| {
            open.end > 0 && open.end + needed > self.archive.label().segment_bytes
        })
    }

    fn needed(&self, packed: &Packed, class: Class) -> u64 {
        packed.bytes().next_multiple_of(place_align(&self.archive, class))
    }

    /// Writes a container; durable after [`sync`](Self::sync).
    pub(crate) fn write(&mut self, packed: &Packed, class: Class) -> Result<Stored> {
        if self.begins_segment(packed, class) {
            self.next_segment(self.needed(packed, class), class)?;
        }
        self.append(packed, class)
    }

    /// Opens a segment for containers that are listed together: [`append`](Self::append) writes all
    /// of them to it.
    pub(crate) fn make_room(&mut self, packed: &[(Class, Packed)], class: Class) -> Result<()> {
        let needed: u64 = packed
            .iter()
            .filter(|(of, _)| *of == class)
            .map(|(_, packed)| self.needed(packed, class))
            .sum();
        let room = |open: &OpenSegment| {
            open.end == 0 || open.end + needed <= self.archive.label().segment_bytes
        };
        if needed == 0 || self.open.get(&class).is_some_and(room) {
            Ok(())
        } else {
            self.next_segment(needed, class)
        }
    }

    /// Writes a container to the segment that is open, however long that gets.
    pub(crate) fn append(&mut self, packed: &Packed, class: Class) -> Result<Stored> {
        let (bytes, needed) = (packed.bytes(), self.needed(packed, class));
        let Some(open) = self.open.get_mut(&class) else {
            return Err(Error::new(Kind::Stopped, "no segment is open"));
        };
        if open.end + needed > open.taken {
            let most = self.archive.settings.ahead_bytes;
            let ahead = needed.max((open.end - open.begin).max(AHEAD_LEAST).min(most));
            let taken = match open.file.reserve(open.end, ahead) {
                // The disk is nearly full: the rest may be enough, as long as something is held
                // back for deletion.
                Err(error)
                    if error.kind() == Kind::NoSpace && self.archive.reserve().bytes()? > 0 =>
                {
                    // A part of it may have been taken.
                    give_ahead_back(&self.archive, open, open.end + ahead)?;
                    open.file.reserve(open.end, needed).map(|()| needed)?
                }
                reserved => reserved.map(|()| ahead)?,
            };
            open.taken = open.end + taken;
        }
        let place = Place {
            segment: open.number,
            at: open.end,
            bytes: bytes as u32,
            meta_bytes: packed.meta.len() as u32,
        };
        open.file.write_parts(open.end, &packed.parts())?;
        open.end += needed;
        self.syncs.wrote(&open.file, bytes);
        Ok(Stored {
            id: packed.id,
            kind: packed.kind,
            domain: if self.archive.keeps(Rule::ListedInItsDomain) { packed.domain } else { 0 },
            chunks: packed.chunks,
            raw_bytes: packed.raw_bytes,
            place,
        })
    }

    /// Makes all containers that were written durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.syncs.sync()
    }

    /// Begins to make containers durable when there is enough for a sync, and waits only when too
    /// much is not durable. For appenders whose containers are listed some time later.
    pub(crate) fn keep_up(&mut self) -> Result<()> {
        self.syncs.keep_up()
    }

    /// How many containers were written.
    pub(crate) fn written(&self) -> u64 {
        self.syncs.written()
    }

    /// How many of them are durable, from the first one on.
    pub(crate) fn durable(&self) -> u64 {
        self.syncs.durable()
    }

    /// Gives space back that was taken ahead.
    pub(crate) fn trim(&mut self) -> Result<()> {
        while let Some((class, _)) = self.open.first_key_value() {
            self.trim_one(*class)?;
        }
        Ok(())
    }

    fn trim_one(&mut self, class: Class) -> Result<()> {
        match self.open.remove(&class) {
            Some(open) if open.taken > open.end => {
                give_ahead_back(&self.archive, &open, open.taken)
            }
            _ => Ok(()),
        }
    }

    /// Cuts the open segments off behind their last listed containers. After a failed append nobody
    /// knows whether the medium has the frame, which may list more of them: they stay. A put key takes nothing
    /// away.
    pub(crate) fn give_back(&mut self) -> Result<()> {
        self.syncs.forget();
        let open = std::mem::take(&mut self.open);
        if open.is_empty() || self.archive.has_stopped() {
            return Ok(());
        }
        if is_put(&self.archive) {
            let ahead = open.values().filter(|open| open.taken > open.end);
            return ahead
                .into_iter()
                .try_for_each(|open| give_ahead_back(&self.archive, open, open.taken));
        }
        let tables = self.archive.refresh()?;
        open.values().try_for_each(|open| {
            open.file.set_bytes(tables.segments.get(&open.number).map_or(0, |segment| segment.end))
        })
    }

    /// Opens the next segment. Where keys have roles its file is made anew, unless it has containers of this
    /// process's key already.
    fn next_segment(&mut self, needed: u64, class: Class) -> Result<()> {
        let (archive, data) = (self.archive.clone(), self.archive.label().data(class));
        let first = !self.open.contains_key(&class);
        self.trim_one(class)?;
        let (mut number, mut end) = self.take_segment(first, needed, class)?;
        let mut others = 0;
        let file = loop {
            let name = segment_name(number);
            // Whoever has a put key may have made a file of this name, and may still write to it.
            let is_anew = archive.label().roles && end == 0;
            let found = if is_anew { None } else { if_there(archive.files.open_large(&name))? };
            match found.map_or_else(|| archive.files.create_wide(&name, data), Ok) {
                Err(error) if error.kind() == Kind::Exists && is_anew => others += 1,
                made => break made?,
            }
            if others > OTHERS_MAX {
                return Err(names_taken(&name));
            }
            (number, end) = self.take_segment(false, needed, class)?;
        };
        // Also when the file was there: its maker may have been killed before its name was durable.
        if self.archive.keeps(Rule::SegmentNameDurable) {
            self.archive.files.sync_names()?;
        }
        self.open.insert(class, OpenSegment { number, file, begin: end, end, taken: end });
        Ok(())
    }

    /// Takes a segment, and the place in it to append at. When a process begins (`first`), and only then, its
    /// owner's last one goes on: this process has filled it. Not where a node of it is absent. A put key writes
    /// only to files that its process made, as it may be at the far end of a connection that takes additions
    /// alone.
    fn take_segment(&self, first: bool, needed: u64, class: Class) -> Result<(u32, u64)> {
        let (archive, owner) = (&self.archive, self.owner);
        let is_put = is_put(archive);
        let mut taken = (0, 0);
        archive.commit(owner == Owner::Collector, |tables| {
            let fits =
                |end: u64| end == 0 || !is_put && end + needed <= archive.label().segment_bytes;
            let last = last_segment(archive, tables, owner, class);
            if let Some((number, end)) = last.filter(|&(_, end)| first && fits(end))
                && archive.files.is_whole(&segment_name(number))?
            {
                taken = (number, end);
                return Ok(Vec::new());
            }
            taken = (tables.next_segment, 0);
            Ok(vec![Record::Reserved {
                owner,
                first: ContainerId(tables.next_id),
                count: 0,
                segment: Some(tables.next_segment),
                class: (class, archive.label().data(class)),
            }])
        })?;
        Ok(taken)
    }
}

fn names_taken(name: &str) -> Error {
    let why = format!(
        "there are files up to {name}, which no change of the archive made: `onefold gc` removes them"
    );
    Error::new(Kind::Denied, why)
}

fn if_there<T>(opened: Result<T>) -> Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// Gives back the space between the last container and `taken`, which was taken ahead. Nobody else
/// writes to the segment.
fn give_ahead_back(archive: &Archive, open: &OpenSegment, taken: u64) -> Result<()> {
    open.file.punch(open.end, taken - open.end)?;
    if archive.label().spread[0] > 1 {
        return Ok(());
    }
    // Some file systems free space behind a file's end only when its length is set. On several
    // nodes that would need all of them.
    open.file.set_bytes(open.file.bytes()?.min(open.end))
}

/// Containers begin at multiples of this in segments of a class.
fn place_align(archive: &Archive, class: Class) -> u64 {
    PLACE_ALIGN * u64::from(archive.label().data(class))
}

/// The class in which a put writes containers of this kind: recipes are read and changed as a
/// whole, and stand encoded from the beginning.
pub(crate) fn class_of(archive: &Archive, kind: ContainerKind) -> Class {
    if archive.label().late.is_some() && kind == ContainerKind::Data {
        Class::Replicated
    } else {
        Class::Plain
    }
}

/// True when no node is absent that has a part of the container at `place`.
pub(crate) fn is_all_there(archive: &Archive, place: &Place) -> bool {
    archive.files.is_whole(&segment_name(place.segment)).unwrap_or(false)
}
