//! The bytes of a snapshot.

use onefold_core::Result;

use super::{
    container::Container,
    data_keys::DataKeys,
    leaf_entries::{MERGED_MEMORY, STREAM_BYTES, STREAM_MEMORY, decode_stream, encode_stream},
    leaves::{InLeaves, Source, decode_directory, encode_directory},
    roles::Roles,
    segments::Segment,
    snapshots::Snapshots,
    state::{Difference, IndexState, Tables},
    volume_table::VolumeTable,
};
use crate::{
    format::{
        bytes::{Reader, Writer, corrupt},
        class::Class,
        domain::other_domain,
        label::Kinds,
        record::{
            CONTAINER_MEMORY, ENTRY_MEMORY, ID_MEMORY, Owner, Place, Stored, id, index_files,
            index_files_of, pieces, pieces_of,
        },
    },
    memory::Drawn,
};

/// No container lies so far behind in a segment.
const SEGMENT_END_MAX: u64 = 1 << 49;

impl Tables {
    /// The bytes of a snapshot.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.sequence)
            .u64(self.chain)
            .u32(self.epoch)
            .u64(self.next_id)
            .u32(self.next_segment);
        if self.leaves {
            encode_directory(self, &mut w);
        } else {
            w.u32(self.streams.len() as u32);
            self.streams.iter().for_each(|(name, stream)| encode_stream(&mut w, name, stream));
        }
        w.u32(self.segments.len() as u32);
        for (&n, segment) in &self.segments {
            w.u32(n)
                .u8(if segment.owner == Owner::Ingest { 1 } else { 2 })
                .u64(segment.end)
                .u64(segment.used);
        }
        if !self.leaves {
            encode_containers(self, &mut w);
        }
        w.u32(self.unfinished.len() as u32);
        for (id, &at) in &self.unfinished {
            w.u64(id.0).u64(at);
        }
        w.u32(self.condemned.len() as u32);
        for (id, bits) in &self.condemned {
            w.u64(id.0).bytes(bits);
        }
        w.u32(self.waiting_to_be_freed.len() as u32);
        for (place, epoch) in self.waiting_to_be_freed.iter() {
            place.encode(&mut w);
            w.u32(*epoch);
        }
        index_files(&mut w, &self.index.files);
        w.u64(self.index.upto).u64(self.counts).u64(self.counted);
        w.u32(self.differences.len() as u32);
        for difference in self.differences.iter() {
            w.u8(u8::from(difference.added) | u8::from(difference.nodes) << 1);
            pieces(&mut w, &difference.recipe);
        }
        if has_volumes(self) {
            self.volumes.encode(&mut w, self.clones, self.has_volume_domains);
        }
        self.encode_late(&mut w);
        if self.trees {
            self.snapshots.encode(&mut w, self.leaves);
        }
        if self.has_domains {
            w.u32(self.domains.last).u32(self.domains.erased.len() as u32);
            for (number, is_free) in &self.domains.erased {
                w.u32(*number).u8(u8::from(*is_free));
            }
        }
        if self.has_data_keys {
            self.data_keys.encode(&mut w);
        }
        if let Some(roles) = &self.roles {
            roles.encode(&mut w);
        }
        // A program that does not know of damage must not put: it would take damaged chunks for
        // duplicates.
        if !self.damaged.is_empty() {
            w.u32(self.damaged.len() as u32);
            for (id, bits) in &self.damaged {
                w.u64(id.0).bytes(bits);
            }
        }
        w.0
    }

    /// The tables of a snapshot that names no leaves.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8], spread: [u8; 3], kinds: Kinds) -> Result<Tables> {
        Tables::decode_within(bytes, spread, kinds, Drawn::free(), None)
    }

    /// The same within a budget, with the leaves that the snapshot names.
    pub(crate) fn decode_within(
        bytes: &[u8],
        spread: [u8; 3],
        kinds: Kinds,
        drawn: &Drawn,
        leaves: Option<&mut Source<'_>>,
    ) -> Result<Tables> {
        let r = &mut Reader(bytes, Some(drawn));
        let mut tables = Tables {
            sequence: r.counter()?,
            chain: r.u64()?,
            epoch: r.u32()?,
            next_id: r.u64()?,
            next_segment: r.u32()?,
            ..Tables::new(spread, kinds)
        };
        let (mut snapshots, mut found) = (None, None);
        if kinds.leaves {
            let read = decode_directory(r, kinds, leaves, drawn)?;
            let InLeaves { streams, containers, file, .. } = read;
            (tables.streams, tables.containers, tables.leaf_file) = (streams, containers, file);
            (snapshots, found) = (Some(read.snapshots), read.found);
        } else {
            for _ in 0..r.count(STREAM_BYTES, STREAM_MEMORY)? {
                let (name, stream) = decode_stream(r)?;
                tables.streams.insert(name, stream);
            }
        }
        for _ in 0..r.count(21, ENTRY_MEMORY)? {
            let n = r.u32()?;
            let owner = if r.u8()? == 1 { Owner::Ingest } else { Owner::Collector };
            let (end, used) = (r.u64()?, r.u64()?);
            if end > SEGMENT_END_MAX {
                return Err(corrupt("a segment can't be so long"));
            }
            tables
                .segments
                .insert(n, Segment { owner, end, used, class: Class::Plain, data: spread[1] });
        }
        if !kinds.leaves {
            decode_containers(&mut tables, r)?;
        }
        let mut follows = None;
        match found {
            Some(found) => {
                tables.moved_to = found.moved_to;
                follows = Some((found.not_imported, found.sums));
            }
            None => find_moved(&mut tables),
        }
        for _ in 0..r.count(16, ID_MEMORY)? {
            tables.unfinished.insert(id(r)?, r.u64()?);
        }
        for _ in 0..r.count(12, ENTRY_MEMORY)? {
            tables.condemned.insert(id(r)?, r.bytes()?.to_vec());
        }
        for _ in 0..r.count(24, 2 * size_of::<(Place, u32)>())? {
            tables.waiting_to_be_freed.insert(Place::decode(r)?, r.u32()?);
        }
        tables.index = IndexState { files: index_files_of(r)?, upto: r.u64()? };
        (tables.counts, tables.counted) = (r.counter()?, r.u64()?);
        for _ in 0..r.count(5, size_of::<Difference>())? {
            let kind = r.u8()?;
            let (added, nodes) = (kind & 1 == 1, kind & 2 == 2);
            tables.differences.push(Difference { added, recipe: pieces_of(r)?, at: 0, nodes });
        }
        if !r.0.is_empty() || tables.late || tables.clones {
            tables.volumes = VolumeTable::decode(r, tables.clones, tables.has_volume_domains)?;
        }
        tables.decode_late(r)?;
        if tables.trees {
            tables.snapshots = Snapshots::decode(r, snapshots)?;
        }
        if tables.has_domains {
            tables.domains.last = r.u32()?;
            for _ in 0..r.count(5, ID_MEMORY)? {
                tables.domains.erased.insert(other_domain(r.u32()?)?, r.u8()? != 0);
            }
        }
        if tables.has_data_keys {
            tables.data_keys = DataKeys::decode(r)?;
        }
        if kinds.roles {
            tables.roles = Some(Roles::decode(r)?);
        }
        if !r.0.is_empty() {
            for _ in 0..r.count(12, ENTRY_MEMORY)? {
                tables.damaged.insert(id(r)?, r.bytes()?.to_vec());
            }
        }
        r.end()?;
        tables.derive(follows);
        Ok(tables)
    }
}

/// True unless there never was a volume, and nothing comes behind their part.
fn has_volumes(tables: &Tables) -> bool {
    let follows = tables.late || tables.trees || tables.clones || !tables.damaged.is_empty();
    follows || !tables.volumes.is_new()
}

fn encode_containers(tables: &Tables, w: &mut Writer) {
    w.u32(tables.containers.len() as u32);
    for container in tables.containers.loaded() {
        container.stored.encode(w);
        w.u64(container.logged).u32(container.merged.len() as u32);
        container.merged.iter().for_each(|id| {
            w.u64(id.0);
        });
    }
}

fn decode_containers(tables: &mut Tables, r: &mut Reader<'_>) -> Result<()> {
    for _ in 0..r.count(Stored::BYTES + 12, CONTAINER_MEMORY)? {
        let stored = Stored::decode(r)?;
        let logged = r.u64()?;
        let merged = (0..r.count(8, MERGED_MEMORY)?).map(|_| id(r)).collect::<Result<Vec<_>>>()?;
        let container = Container { stored, merged, logged, born: 0, changed: 0 };
        tables.containers.insert(stored.id, container)?;
    }
    Ok(())
}

/// Where merged containers lie, as the containers say that they were merged into.
fn find_moved(tables: &mut Tables) {
    let Tables { containers, moved_to, .. } = tables;
    for container in containers.loaded() {
        for &id in &container.merged {
            moved_to.change(id, |places| places.push(container.stored.id));
        }
    }
}
