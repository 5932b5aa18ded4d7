//! From chunks to maps: stale references, chunks without references, data without a reference
//! object, and, in a deep scrub, data that do not match their names.

use std::collections::BTreeSet;

use onefold_core::object::{Change, Guard, ObjectName, PoolKind, Read, ReadPart, Refusal, Write};

use super::{Scrub, Stage};
use crate::{
    chunk_map::{ChunkMap, is_stale},
    format::{Chunk, ObjectId, Reference, key},
    rules::Rule,
    volume::header,
};

/// Keys of a page of references.
const PAGE: usize = 500;

impl Scrub {
    /// Drops stale references, and removes chunks of which none is left. With erasure code this
    /// comes once for the references and once for the data.
    pub(super) fn chunks(&mut self, chunks: &[Chunk]) -> Result<(), Refusal> {
        if self.place.stage == Stage::Chunks {
            self.report.chunks += chunks.len() as u64;
            if self.session.kernel().format().chunks == PoolKind::Erasure {
                self.orphans(chunks)?;
                return self.hash(chunks);
            }
        }
        let session = self.session.clone();
        let page = |chunk: &Chunk, after: Vec<u8>| Read {
            object: session.chunk_pool().references(chunk),
            parts: vec![ReadPart::Page(after, PAGE)],
        };
        let mut open: Vec<(Chunk, Vec<u8>)> =
            chunks.iter().map(|chunk| (*chunk, Vec::new())).collect();
        let mut unused: BTreeSet<Chunk> = BTreeSet::new();
        let mut first = true;
        while !open.is_empty() {
            let answers = self.session.kernel().read_all(
                &open.iter().map(|(chunk, after)| page(chunk, after.clone())).collect::<Vec<_>>(),
            );
            let (mut references, mut more_of) = (Vec::new(), Vec::new());
            for ((chunk, _), answer) in open.iter().zip(answers) {
                let answer = match answer {
                    Err(Refusal::Missing) => continue,
                    other => other?,
                };
                let (pairs, more) = answer.pairs(0);
                if first {
                    unused.insert(*chunk);
                }
                references.extend(
                    pairs
                        .iter()
                        .filter_map(|(key, _)| key::parse_reference(key))
                        .map(|reference| (*chunk, reference)),
                );
                if let Some((last, _)) = pairs.last().filter(|_| more) {
                    more_of.push((*chunk, last.clone()));
                }
            }
            for used in self.backward(&references)? {
                unused.remove(&used);
            }
            (open, first) = (more_of, false);
        }
        self.report.collected += if self.repairs {
            self.session.chunk_pool().collect_all(unused)?
        } else {
            unused.len() as u64
        };
        self.hash(chunks)
    }

    /// Drops the stale ones of the references; returns the chunks that have others.
    fn backward(&mut self, references: &[(Chunk, Reference)]) -> Result<BTreeSet<Chunk>, Refusal> {
        let objects: BTreeSet<ObjectId> =
            references.iter().map(|(_, reference)| reference.object).collect();
        let inline = header::inline_sessions(self.session.kernel(), &objects)?;
        let maps = ChunkMap::read_each(self.session.kernel(), &objects)?;
        let (mut used, mut drops) = (BTreeSet::new(), Vec::new());
        for (chunk, reference) in references {
            self.report.references += 1;
            let Some(map) = maps.get(&reference.object) else {
                used.insert(*chunk);
                continue;
            };
            #[cfg(feature = "planted-bugs")]
            if super::broken::is_old(self.session.kernel(), map.as_ref(), chunk, reference) {
                drops.push(self.session.chunk_pool().drop_op(chunk, reference));
                continue;
            }
            // An inline session may be about to write the entry that names it.
            let made = inline.get(&reference.object.volume) == Some(&reference.stamp.session());
            let coming = made && self.session.kernel().keeps(Rule::InlineReferencesSpared);
            if !coming && is_stale(self.session.kernel(), map.as_ref(), chunk, reference) {
                drops.push(self.session.chunk_pool().drop_op(chunk, reference));
            } else {
                used.insert(*chunk);
            }
        }
        if !self.repairs {
            self.report.stale += drops.len() as u64;
            return Ok(used);
        }
        for result in self.session.kernel().all_until_answered(&drops) {
            match result {
                Ok(_) | Err(Refusal::Missing) => self.report.stale += 1,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(used)
    }

    /// Finds data of an erasure-coded pool without an object for its references.
    fn orphans(&mut self, chunks: &[Chunk]) -> Result<(), Refusal> {
        let look = |chunk: &Chunk| Read {
            object: self.session.chunk_pool().references(chunk),
            parts: vec![ReadPart::Stat],
        };
        let answers = self.session.kernel().read_all(&chunks.iter().map(look).collect::<Vec<_>>());
        for (chunk, answer) in chunks.iter().zip(answers) {
            match answer {
                Ok(_) => {}
                Err(Refusal::Missing) => self.orphan(chunk)?,
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Data of an erasure-coded pool without an object for its references.
    fn orphan(&mut self, chunk: &Chunk) -> Result<(), Refusal> {
        // The order matters: a session that adds first makes the reference object, and then writes
        // the data anew, at another version.
        let data = ObjectName::chunk(chunk.name());
        let version = match self.session.kernel().read_one(&data, vec![ReadPart::Stat]) {
            Ok(answer) => answer.version,
            Err(Refusal::Missing) => return Ok(()),
            Err(refusal) => return Err(refusal),
        };
        match self
            .session
            .kernel()
            .read_one(&self.session.chunk_pool().references(chunk), vec![ReadPart::Stat])
        {
            Err(Refusal::Missing) => {}
            other => return other.map(|_| ()),
        }
        if !self.repairs {
            self.report.orphans += 1;
            return Ok(());
        }
        match self.session.kernel().write_one(&Write {
            object: data,
            guards: vec![Guard::Version(version)],
            changes: vec![Change::Remove],
        }) {
            Ok(_) => self.report.orphans += 1,
            Err(Refusal::Mismatch | Refusal::Missing | Refusal::Unknown) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    fn hash(&mut self, chunks: &[Chunk]) -> Result<(), Refusal> {
        if self.deep && self.place.stage == Stage::Chunks {
            self.read += chunks.iter().map(|chunk| u64::from(chunk.id.length)).sum::<u64>();
            for result in self.session.chunk_pool().read_chunks(chunks) {
                match result {
                    Ok(_) | Err(Refusal::Missing) => {}
                    Err(Refusal::Failed(error)) => self.report.tell(error.to_string()),
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        Ok(())
    }
}
