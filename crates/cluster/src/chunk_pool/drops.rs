//! Dropping references: pending drops of metadata objects, and references without a use.

use std::collections::BTreeMap;

use onefold_core::object::{Change, Guard, Refusal, Write};

use super::ChunkPool;
use crate::{
    chunk_map::{ChunkMap, is_named, is_stale},
    format::{Chunk, ObjectId, Reference, key},
    rules::Rule,
};

impl ChunkPool {
    /// Does the pending drops of a map, and removes chunks to which nothing refers any more.
    pub(crate) fn drop_references(&self, drops: &[(Chunk, Reference)]) -> Result<(), Refusal> {
        let ops: Vec<Write> =
            drops.iter().map(|(chunk, reference)| self.drop_op(chunk, reference)).collect();
        for result in self.kernel.all_until_answered(&ops) {
            match result {
                Ok(_) | Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        self.collect_all(drops.iter().map(|(chunk, _)| *chunk)).map(|_| ())
    }

    /// Does the pending drops of an object; returns how many operations they needed.
    pub(crate) fn finish_drops(&self, drops: &[(Chunk, Reference)]) -> Result<u64, Refusal> {
        if drops.is_empty() {
            return Ok(0);
        }
        self.drop_references(drops)?;
        self.forget_drops(drops)?;
        Ok(3 * drops.len() as u64 + 1)
    }

    /// As [`finish_drops`](Self::finish_drops) for several objects together; where that fails, for
    /// each.
    pub(crate) fn finish_each(&self, of: &[Vec<(Chunk, Reference)>]) -> Vec<Result<u64, Refusal>> {
        let all = of.concat();
        match self.finish_drops(&all) {
            Ok(_) => of
                .iter()
                .map(|drops| if drops.is_empty() { Ok(0) } else { Ok(3 * drops.len() as u64 + 1) })
                .collect(),
            Err(_) => of.iter().map(|drops| self.finish_drops(drops)).collect(),
        }
    }

    /// Removes pending drops that are done.
    pub(crate) fn forget_drops(&self, drops: &[(Chunk, Reference)]) -> Result<(), Refusal> {
        let mut keys: BTreeMap<ObjectId, Vec<Vec<u8>>> = BTreeMap::new();
        for (_, reference) in drops {
            keys.entry(reference.object)
                .or_default()
                .push(key::pending(reference.offset, reference.stamp));
        }
        let op = |(object, keys): (ObjectId, _)| Write {
            object: object.name(),
            guards: vec![Guard::Exists],
            changes: vec![Change::DropOmap(keys)],
        };
        for result in self.kernel.all_until_answered(&keys.into_iter().map(op).collect::<Vec<_>>())
        {
            match result {
                Ok(_) | Err(Refusal::Missing) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// After a flip that came too late: drops the references that were added and that no entry has
    /// a use for. Where the winner's entry names its chunk by the same reference, the attempt at it is
    /// over.
    pub(crate) fn drop_unused_references(
        &self,
        object: ObjectId,
        added: &[(Chunk, Reference)],
    ) -> Result<(), Refusal> {
        if added.is_empty() {
            return Ok(());
        }
        let map = ChunkMap::read(&self.kernel, object)?;
        for (chunk, reference) in added {
            if !self.kernel.keeps(Rule::UsedReferencesKept)
                || is_stale(&self.kernel, map.as_ref(), chunk, reference)
            {
                self.drop_references(&[(*chunk, *reference)])?;
                self.attempts_are_over([(*chunk, *reference)]);
            } else if is_named(map.as_ref(), chunk, reference) {
                self.attempts_are_over([(*chunk, *reference)]);
            }
        }
        Ok(())
    }
}
