//! After a crash: the archive is compared with the model, and checked.

pub(super) mod damage;
pub(super) mod places;

use onefold_archive::{
    Archive, Content, Reader, SnapshotId, Verify, check, mend_leaves, renew_snapshot,
};
use onefold_core::Kind;

use super::{
    actors::snapshots::Kept,
    model::{Disk, Known, Unsure},
    params::{Medium, Profile},
    run::{Flow, Sim},
};
use crate::{checker::Checker, checker::Failure};

impl Sim {
    /// After a crash a reader looks first, and writes nothing. A change under way that the reader
    /// shows is there for good, whatever crash comes next; one that it does not show may still
    /// come.
    pub(crate) fn look_as_reader(&mut self) -> Flow {
        let archive = self.open(false)?;
        let mut reader = Reader::new(&archive).map_err(|error| self.judge("reader", &error))?;
        let (under_way, known) = (self.unsure.clone(), self.known());
        self.resolve(&mut reader)?;
        if self.shows_no_change_since(&known) {
            self.unsure = under_way;
        } else {
            self.reach.hit("a reader showed a change that nobody vouched for");
        }
        Ok(())
    }

    /// Streams, and volumes with their blocks.
    pub(crate) fn known(&self) -> Known {
        (
            self.streams.clone(),
            self.disks.iter().map(|(name, disk)| (name.clone(), disk.cells.len())).collect(),
            self.kept.iter().map(|(&id, kept)| (id, kept.forgotten.is_some())).collect(),
        )
    }

    /// True when no change became visible since the model knew this. A forgotten snapshot that an
    /// earlier collection let expire may have been found gone.
    pub(crate) fn shows_no_change_since(&self, known: &Known) -> bool {
        let (streams, disks, kept) = self.known();
        streams == known.0
            && disks == known.1
            && kept.iter().all(|snapshot| known.2.contains(snapshot))
    }

    /// After a crash: what was under way is there or not, all else is as it was.
    pub(crate) fn look(&mut self) -> Flow {
        let archive = self.open(true)?;
        let mut reader = match Reader::new(&archive) {
            Ok(reader) => reader,
            Err(error) => return Err(self.judge("reader", &error)),
        };
        self.settle_domains(&archive)?;
        self.resolve(&mut reader)?;
        let tables = reader.tables().clone();
        let there = tables.streams.iter().filter(|(_, one)| !Sim::is_gone(&tables, one.domain));
        let found: Vec<String> = there.map(|(name, _)| name.clone()).collect();
        let expected: Vec<String> = self.streams.keys().cloned().collect();
        if found != expected {
            return Err(Failure::new(
                Checker::DurableSurvives,
                format!("after a crash streams {found:?} instead of {expected:?}"),
            )
            .into());
        }
        for (name, content) in self.streams.clone() {
            self.compare(&mut reader, &name, &content)?;
        }
        self.look_at_volumes(&archive)?;
        self.look_at_snapshots(&archive)?;
        places::look_at_places(&archive.tables(), self.params.late.is_some())?;
        if self.params.pads && places::look_at_lengths(&archive.tables())? {
            self.reach.hit("a container of more than eight steps had one of few lengths");
        }
        if let Some(most) = self.params.on_demand.filter(|_| self.upgraded.kinds.on_demand) {
            self.reach.hit("leaves were read on demand");
            let bytes = archive.leaf_bytes();
            if bytes > most {
                let message = format!("{bytes} bytes of leaves are kept, and {most} are the most");
                return Err(Failure::new(Checker::StoreCheck, message).into());
            }
        }
        self.no_index_file_lost(&archive)?;
        self.make_index_whole(&archive)?;
        if !self.damaged {
            self.look_at_index(&archive)?;
            self.restore_recorded(&archive)?;
            self.mend_leaves(&archive)?;
            match check(&archive, true, &mut |_, _, _| {}) {
                Ok(report) if report.is_well() => {
                    if let Some(counts) = &report.counts {
                        self.reach.hit("usage counts compared with the roots");
                        self.look_at_counts(counts)?;
                    }
                    self.look_at_pages_of_counts(&archive, report.counts.is_some())?;
                }
                Ok(report) => {
                    return Err(
                        Failure::new(Checker::StoreCheck, report.problems.join("; ")).into()
                    );
                }
                Err(error) => return Err(self.judge("check", &error)),
            }
            self.reach.hit("checked after a crash");
        }
        Ok(())
    }

    /// Pages of usage counts are lost with what a medium damages, and where a lost frame comes back
    /// after files went that it names. Nothing else loses them.
    fn look_at_pages_of_counts(&mut self, archive: &Archive, are_found: bool) -> Flow {
        if !self.upgraded.kinds.counts_in_pages || archive.tables().counts == 0 {
            return Ok(());
        }
        if are_found {
            self.reach.hit("usage counts in pages compared with the roots");
            return Ok(());
        }
        let may_be_lost = self.params.late_counts
            || self.params.spread.is_some()
            || self.params.profile == Profile::Damage
            || self.params.medium != Medium::Good;
        match may_be_lost {
            true => Ok(()),
            false => Err(Failure::new(Checker::StoreCheck, "usage counts are lost").into()),
        }
    }

    /// What the medium damaged of the leaves of tables is written again from the other copies, and
    /// damaged no more.
    fn mend_leaves(&mut self, archive: &Archive) -> Flow {
        match mend_leaves(archive) {
            Ok(0) => {}
            Ok(_) => self.reach.hit("a copy of a leaf was written again"),
            Err(error) => return Err(self.judge("mend leaves", &error)),
        }
        match renew_snapshot(archive) {
            Ok(false) => {}
            Ok(true) => self.reach.hit("a snapshot of the tables was written anew"),
            Err(error) => return Err(self.judge("renew snapshot", &error)),
        }
        Ok(())
    }

    pub(crate) fn resolve(&mut self, reader: &mut Reader) -> Flow {
        let Some(unsure) = self.unsure.take() else { return Ok(()) };
        let tables = reader.tables().clone();
        match &unsure {
            Unsure::Put(name, content) => {
                // New or old: told apart by what is read, when both have the name.
                let is_new = match tables.streams.get(name) {
                    None => false,
                    Some(stream) => {
                        let mut bytes = Vec::new();
                        let read = reader.read(&stream.recipe, Verify::Groups, &mut |part| {
                            match part {
                                Content::Bytes(part) => bytes.extend_from_slice(part),
                                Content::Zeroes(n) | Content::Hole(n) => {
                                    bytes.resize(bytes.len() + n as usize, 0)
                                }
                            }
                            Ok(())
                        });
                        if read.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt)
                            && self.damaged
                        {
                            // A stream that can't be read is told apart by its length.
                            if stream.bytes == content.len() as u64 {
                                bytes.clone_from(content);
                            } else {
                                bytes = vec![!content.first().copied().unwrap_or(0)];
                            }
                        } else if let Err(error) = read {
                            let ended = self.judge("read", &error);
                            self.unsure = Some(unsure);
                            return Err(ended);
                        }
                        bytes == **content
                    }
                };
                if is_new {
                    self.reach.hit("a put was there without its acknowledgement");
                    self.streams.insert(name.clone(), content.clone());
                }
            }
            Unsure::Backup(id, tree) => {
                if tables.snapshots.get(SnapshotId(*id)).is_ok() {
                    self.reach.hit("a backup was there without its acknowledgement");
                    self.kept.insert(*id, Kept { tree: tree.clone(), forgotten: None });
                }
            }
            Unsure::Forget(id, is) => {
                let now = tables.snapshots.get(SnapshotId(*id));
                if now.is_ok_and(|snapshot| snapshot.forgotten.is_some() == *is) {
                    self.forgotten(*id, *is);
                }
            }
            Unsure::Remove(name) => {
                if !tables.streams.contains_key(name) {
                    self.streams.remove(name);
                }
            }
            Unsure::VolumeSize(name, after) => match tables.volumes.named(name) {
                Err(_) => drop(self.disks.remove(name)),
                // What is of an erased domain is none of the model's volumes.
                Ok((_, volume)) if Sim::is_gone(&tables, volume.domain) => {}
                Ok((_, volume)) if volume.blocks() == *after as u64 => {
                    self.disks
                        .entry(name.clone())
                        .or_insert_with(|| Disk::new(*after, volume.domain))
                        .resize(*after);
                }
                Ok(_) => {}
            },
            Unsure::VolumeName(from, to) => {
                if tables.volumes.named(from).is_err()
                    && let Some(disk) = self.disks.remove(from)
                {
                    self.disks.insert(to.clone(), disk);
                }
            }
            Unsure::VolumeClone(of, name, served, read_only) => {
                let made = tables.volumes.named(name);
                if made.is_ok_and(|(_, made)| !Sim::is_gone(&tables, made.domain)) {
                    self.cloned(of, name.clone(), *served, *read_only);
                }
            }
            Unsure::Rename(from, to) => {
                if !tables.streams.contains_key(from)
                    && let Some(content) = self.streams.remove(from)
                {
                    self.streams.insert(to.clone(), content);
                }
            }
        }
        Ok(())
    }
}
