//! Events of a walk in another process, before they are believed. They name pages and chunks that
//! the archive has: each must be there, at its address, with its fingerprint. A name of what comes
//! later, or of what others have elsewhere, would be counted like any other, and would take from
//! their owners what it names when its snapshot goes.
//!
//! Pages are looked at down to the chunks. Pieces of recipes lie in the same containers, and a client that
//! chooses what it puts can have one that reads like a page.

use std::{collections::BTreeMap, sync::Arc};

use onefold_core::{Error, Fingerprint, Kind, Result};

use super::builder::Event;
use crate::{
    container::{ChunkReader, ContainerReader},
    format::{
        Address,
        container::ContainerKind,
        damage::is_condemned,
        recipe::{CONTENT_BYTES_MAX, Part},
        tree_node::{
            Attributes, FileMap, Key, Stat, Top, TreeEntry, TreeNode, TreeNodeRef, TreeWhat,
        },
    },
    operations_log::Archive,
    tables::Tables,
};

/// Looks at what is told by others.
pub(super) struct Judge {
    tables: Arc<Tables>,
    containers: ContainerReader,
    chunks: ChunkReader,
    /// The pages of files that were looked at, on which level, and the bytes below each: however often
    /// others name one, it is read once.
    seen: BTreeMap<(Address, u8), (Fingerprint, u64)>,
}

impl Judge {
    /// By the tables as they are now: what is named later was there before, in the domain of this number.
    pub(super) fn new(archive: &Arc<Archive>, tables: &Arc<Tables>, domain: u32) -> Judge {
        let mut chunks = ChunkReader::default();
        chunks.domain = Some(domain);
        let containers = ContainerReader::new(archive.clone());
        Judge { tables: tables.clone(), containers, chunks, seen: BTreeMap::new() }
    }

    /// Looks at all that an event names.
    ///
    /// # Errors
    /// `InvalidInput` for what is not there, and for an entry of another kind than its event;
    /// errors of the system.
    pub(super) fn look(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Enter(entry, stat, known) => {
                self.entry(entry, stat, matches!(entry.what, TreeWhat::Directory(None)))?;
                known.iter().try_for_each(|(of, at)| self.page(*at, *of))
            }
            Event::Known(known) => known.iter().try_for_each(|(of, at)| self.page(*at, *of)),
            Event::Chunks(_) => Err(refused("chunks are named within a process alone")),
            Event::File(entry, stat, taken) => {
                self.entry(entry, stat, is_bare_file(entry))?;
                match taken {
                    Some((bytes, map)) => self.map(*bytes, map),
                    None => Ok(()),
                }
            }
            Event::Other(entry, stat) => {
                let has_content = matches!(entry.what, TreeWhat::Directory(_) | TreeWhat::File(..));
                self.entry(entry, stat, !has_content)
            }
            Event::Link(entry, stat) => {
                let is_directory = matches!(entry.what, TreeWhat::Directory(_));
                let is_full = matches!(entry.what, TreeWhat::File(..)) && !is_bare_file(entry);
                self.entry(entry, stat, !is_directory && !is_full)
            }
            Event::Leave(_)
            | Event::Discard
            | Event::Attributes
            | Event::Checkpoint(_)
            | Event::End(_) => Ok(()),
        }
    }

    fn entry(&mut self, entry: &TreeEntry, stat: &Stat, is_of_kind: bool) -> Result<()> {
        // The stat pages of a directory come when it is left.
        if !is_of_kind || stat.pages.is_some() {
            return Err(refused("an entry has content that its event does not give"));
        }
        match &entry.attributes {
            Attributes::Stored(bytes, map) => self.map(*bytes, map),
            Attributes::Inline(_) => Ok(()),
        }
    }

    /// Looks at the content of a file of so many bytes. A length of the client's choice would make the next
    /// honest snapshot of the set look shrunk.
    fn map(&mut self, bytes: u64, map: &FileMap) -> Result<()> {
        let there = match map {
            FileMap::Pages(Top { levels, node }) => self.pages(*node, *levels)?,
            FileMap::Inline(parts) => self.parts(parts)?,
        };
        if there == bytes {
            Ok(())
        } else {
            Err(refused("a file has another length than its content"))
        }
    }

    /// Looks at parts of a file; gives their bytes.
    fn parts(&mut self, parts: &[Part]) -> Result<u64> {
        let mut sum = 0u64;
        for part in parts {
            sum = sum
                .checked_add(part.bytes())
                .filter(|sum| *sum <= CONTENT_BYTES_MAX)
                .ok_or_else(|| refused("a file is longer than files can be"))?;
            match part {
                Part::Run { first, bytes, fingerprints } => {
                    let mut there = 0u64;
                    for (n, of) in fingerprints.iter().enumerate() {
                        let slot = u16::try_from(n).ok().and_then(|n| first.slot.checked_add(n));
                        let slot = slot.ok_or_else(missing)?;
                        let at = Address { slot, ..*first };
                        there += self.chunk(at, *of, ContainerKind::Data)?;
                    }
                    if there != u64::from(*bytes) {
                        return Err(missing());
                    }
                }
                Part::Zeroes(_) | Part::Hole(_) => {}
                Part::Slice { .. } | Part::End(_) => {
                    return Err(refused("the content of a file has a part that files have not"));
                }
            }
        }
        Ok(sum)
    }

    /// Looks at a page of a file and at all below it; gives their bytes.
    fn pages(&mut self, of: TreeNodeRef, level: u8) -> Result<u64> {
        if let Some((fingerprint, bytes)) = self.seen.get(&(of.address, level))
            && *fingerprint == of.fingerprint
        {
            return Ok(*bytes);
        }
        self.page(of.address, of.fingerprint)?;
        let read = self.chunks.chunk(&self.tables, &self.containers, of.address)?;
        let bytes = match TreeNode::decode(read)? {
            TreeNode::FileMap(parts) if level == 0 => self.parts(&parts)?,
            // Each is a level lower: it ends.
            TreeNode::Index(at, entries) if at == level && level > 0 => {
                let mut all = 0u64;
                for entry in entries {
                    let below = self.pages(entry.node, level - 1)?;
                    if entry.key != Key::Sum(below) {
                        return Err(refused("a file has another length than its content"));
                    }
                    all = all.saturating_add(below);
                }
                all
            }
            _ => return Err(refused("the pages of a file are pages of something else")),
        };
        self.seen.insert((of.address, level), (of.fingerprint, bytes));
        Ok(bytes)
    }

    /// Looks for a page of a tree: content that looks like one is none, as it lies among content.
    fn page(&mut self, at: Address, of: Fingerprint) -> Result<()> {
        self.chunk(at, of, ContainerKind::Recipes).map(drop)
    }

    /// The bytes of a chunk that is there with this fingerprint, in a container of this kind. One that was
    /// condemned before the walk began is on its way out: collection waits for nobody who names it now.
    fn chunk(&mut self, at: Address, of: Fingerprint, kind: ContainerKind) -> Result<u64> {
        let found = self.chunks.find(&self.tables, &self.containers, at)?;
        let (container, metadata, n) = found.ok_or_else(missing)?;
        let condemned = self.tables.condemned.get(&container.stored.id);
        if container.stored.kind != kind || condemned.is_some_and(|bits| is_condemned(bits, n)) {
            return Err(missing());
        }
        match metadata.chunks.get(n) {
            Some(chunk) if chunk.fingerprint == of => Ok(u64::from(chunk.bytes)),
            _ => Err(missing()),
        }
    }
}

/// True for a file whose content comes with its event.
fn is_bare_file(entry: &TreeEntry) -> bool {
    match &entry.what {
        TreeWhat::File(_, map) => *map == FileMap::default(),
        _ => false,
    }
}

fn missing() -> Error {
    refused("it names data that the archive does not have")
}

fn refused(why: &str) -> Error {
    Error::new(Kind::InvalidInput, format!("the snapshot of a client is refused: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

    use onefold_testbed::{Rng, VirtualFiles, files::Layout};

    use super::*;
    use crate::{
        chunk_index::ByFingerprint,
        format::{ContainerId, record::Shape, tree_node::IndexEntry},
        settings::{Format, Settings},
        stream::{Cutting, Ended, Ingest, PieceWriter, Session, StreamWriter, Target, Writing},
    };

    /// Stores pieces where recipes and pages lie, as a client does that chooses what its recipes are.
    #[derive(Default)]
    struct Forging {
        pieces: Vec<TreeNode>,
        chunk: Option<(Address, Fingerprint, u32)>,
        stored: Vec<Address>,
    }

    impl Target for Forging {
        fn chunk(
            &mut self,
            address: Address,
            fingerprint: Fingerprint,
            bytes: u32,
            _: &mut PieceWriter<'_>,
        ) -> Result<()> {
            self.chunk = Some((address, fingerprint, bytes));
            Ok(())
        }

        fn zeroes(&mut self, _: u64, _: &mut PieceWriter<'_>) -> Result<()> {
            Ok(())
        }

        fn mark(&mut self, write_piece: &mut PieceWriter<'_>) -> Result<()> {
            for piece in self.pieces.drain(..) {
                self.stored.push(write_piece(piece.encode())?);
            }
            Ok(())
        }
    }

    /// Stores a chunk of data and pieces; gives the chunk and the names of the pieces.
    fn store(
        archive: &Arc<Archive>,
        name: &str,
        pieces: Vec<TreeNode>,
    ) -> (Part, Vec<TreeNodeRef>) {
        let ingest = Ingest::begin(archive, false, false).unwrap();
        let mut session = Session::in_domain(&ingest, 0).unwrap();
        let mut writer = StreamWriter::new(&session, 1);
        let mut cutting = Cutting::new(&**session.domain());
        cutting.room()[..100].fill(7);
        assert!(cutting.advance(100).is_none() && cutting.mark().is_none());
        let mut batch = cutting.some();
        batch.fingerprint(session.domain());
        let names: Vec<_> = pieces
            .iter()
            .map(|piece| session.domain().fingerprinter.bytes(&piece.encode()))
            .collect();
        let mut forging = Forging { pieces, ..Forging::default() };
        let mut sink = |open| writer.pack_and_write(open);
        session.place(&batch, &mut forging, &ByFingerprint::default(), &mut sink).unwrap();
        let data = session.end_recipe(Writing::default(), &mut sink).unwrap();
        session.seal(&mut sink).unwrap();
        let (shape, listing) = (Shape::Bytes, Vec::new());
        writer.commit(Ended { name: name.into(), shape, created: 1, data, listing }).unwrap();
        writer.close().unwrap();
        let (first, fingerprint, bytes) = forging.chunk.unwrap();
        let refs = forging.stored.into_iter().zip(names);
        let refs =
            refs.map(|(address, fingerprint)| TreeNodeRef { address, fingerprint }).collect();
        (Part::Run { first, bytes, fingerprints: vec![fingerprint] }, refs)
    }

    #[test]
    fn rule_21_pages_of_a_client_name_only_what_is_there() {
        let files = Arc::new(VirtualFiles::new(Layout::default(), Rng::new(1)));
        let mut format = Format::new([1; 16], [2; 32], [3; 16]);
        (format.reserve_bytes, format.trees) = (0, true);
        Archive::create(&*files, &format).unwrap();
        let archive = Arc::new(Archive::open(files, true, Settings::default()).unwrap());
        let (there, _) = store(&archive, "chunk", Vec::new());
        let Part::Run { first, bytes, fingerprints } = &there else { panic!("it is a chunk") };
        let run = |container, fingerprint| Part::Run {
            first: Address { container: ContainerId(container), slot: first.slot },
            bytes: *bytes,
            fingerprints: vec![fingerprint],
        };
        let page = |part| TreeNode::FileMap(vec![part]);
        let pieces = vec![
            page(there.clone()),
            // A container that does not exist yet, and other content.
            page(run(first.container.0 + 5, fingerprints[0])),
            page(run(first.container.0, Fingerprint([1; 16]))),
            TreeNode::FileMap(vec![Part::Hole(u64::MAX), Part::Zeroes(101)]),
        ];
        let (_, pages) = store(&archive, "pages", pieces);
        let index = |level, node, sum| {
            TreeNode::Index(level, vec![IndexEntry { node, key: Key::Sum(sum) }])
        };
        let later = TreeNodeRef {
            address: Address { container: ContainerId(first.container.0 + 9), slot: 0 },
            ..pages[0]
        };
        let indexes = vec![
            index(1, pages[0], 100),
            index(1, pages[1], 100),
            index(1, later, 100),
            index(1, pages[0], 101),
            index(2, pages[0], 100),
        ];
        let (_, indexes) = store(&archive, "indexes", indexes);
        let tables = archive.refresh().unwrap();
        let mut judge = Judge::new(&archive, &tables, 0);
        let mut says = |levels, node| {
            judge.map(100, &FileMap::Pages(Top { levels, node })).map_err(|error| error.kind())
        };
        assert_eq!(says(0, pages[0]), Ok(()));
        assert_eq!(says(1, indexes[0]), Ok(()));
        // Content that is being collected, with a page of it that is not.
        let mut condemning = Tables::clone(&tables);
        condemning.condemned.insert(first.container, vec![1]);
        let mut late = Judge::new(&archive, &Arc::new(condemning), 0);
        let named = late.map(100, &FileMap::Pages(Top { levels: 0, node: pages[0] }));
        assert_eq!(named.map_err(|error| error.kind()), Err(Kind::InvalidInput));
        for (n, page) in (1..).zip(&pages[1..]) {
            assert_eq!(says(0, *page), Err(Kind::InvalidInput), "page {n}");
        }
        for (n, page) in (1..).zip(&indexes[1..]) {
            let level = if n == 4 { 2 } else { 1 };
            assert_eq!(says(level, *page), Err(Kind::InvalidInput), "index {n}");
        }
    }
}
