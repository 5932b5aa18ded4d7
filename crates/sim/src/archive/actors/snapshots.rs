//! Snapshots of directories: made a step at a time beside a parent, forgotten, undeleted, read.

use std::{collections::BTreeMap, sync::Arc};

use onefold_archive::{
    Archive, Attributes, BackupRequest, Batch, Content, Cutting, Entries, Event, FileMap, Ingest,
    Parents, Part, Session, Snapshot, SnapshotId, Stat, StreamWriter, TreeBuilder, TreeEntry,
    TreeReader, TreeWhat, Verify, encode_attributes,
};
use onefold_core::{Error, Kind};

use crate::{
    archive::{
        model::Unsure,
        params::Profile,
        run::{Flow, Sim, Stop},
    },
    checker::{Checker, Failure},
};

/// Files by their paths: when each was changed last, and its content.
pub(crate) type Tree = BTreeMap<Vec<u8>, (u64, Arc<Vec<u8>>)>;

/// A snapshot of the model.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) tree: Arc<Tree>,
    /// When it was forgotten.
    pub(crate) forgotten: Option<u64>,
}

/// The next step of a walk.
enum Visit {
    Enter(Vec<u8>),
    File(Vec<u8>, u64, Arc<Vec<u8>>),
    Leave,
}

/// A backup that is under way.
pub(crate) struct Backing {
    session: Session,
    writer: StreamWriter,
    cutting: Cutting,
    builder: TreeBuilder,
    parents: Parents,
    request: BackupRequest,
    tree: Arc<Tree>,
    visits: std::vec::IntoIter<Visit>,
    archive: Arc<Archive>,
    /// The tree is that of the parent: unless something was noted as damaged, no page is written. Chunks that a
    /// collection condemned and did not look at again are stored once more, and so are the pages that name
    /// them.
    unchanged: bool,
    /// The serving process makes it.
    pub(crate) served: bool,
}

/// Attributes that are stored as content, of some files.
fn attributes(path: &[u8]) -> Option<Vec<u8>> {
    let value = vec![path.last().copied().unwrap_or_default(); 1500];
    path.ends_with(b"7").then(|| encode_attributes(&[(b"user.a".to_vec(), value)]))
}

fn entry(name: &[u8], what: TreeWhat, changed: u64) -> TreeEntry {
    TreeEntry {
        name: name.to_vec(),
        what,
        mode: 0o644,
        uid: 1,
        gid: 2,
        seconds: changed as i64,
        nanoseconds: 0,
        link: 0,
        is_in_part: false,
        attributes: Attributes::default(),
    }
}

/// The walk over a tree: directories and files in the order of their names.
fn visits(tree: &Tree) -> Vec<Visit> {
    // Paths are ordered part by part.
    let mut paths: Vec<_> = tree.iter().collect();
    let parts = |path: &[u8]| path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect();
    paths.sort_by_key(|(path, _)| -> Vec<Vec<u8>> { parts(path) });
    let (mut visits, mut open): (Vec<Visit>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for (path, (changed, content)) in paths {
        let mut parts: Vec<Vec<u8>> = parts(path);
        let name = parts.pop().unwrap_or_default();
        let shared = open.iter().zip(&parts).take_while(|(one, other)| one == other).count();
        while open.len() > shared {
            open.pop();
            visits.push(Visit::Leave);
        }
        for part in &parts[shared..] {
            open.push(part.clone());
            visits.push(Visit::Enter(part.clone()));
        }
        visits.push(Visit::File(name, *changed, content.clone()));
    }
    visits.extend(open.iter().map(|_| Visit::Leave));
    visits
}

impl Backing {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.builder.expect(event);
        self.cutting.mark();
        self.store()
    }

    fn content(&mut self, mut rest: &[u8]) -> Result<(), Error> {
        while !rest.is_empty() {
            let room = self.cutting.room();
            let part = rest.len().min(room.len());
            room[..part].copy_from_slice(&rest[..part]);
            rest = &rest[part..];
            if let Some(mut batch) = self.cutting.advance(part) {
                batch.fingerprint(self.session.domain());
                self.add(&batch)?;
            }
        }
        Ok(())
    }

    fn store(&mut self) -> Result<(), Error> {
        let mut batch = self.cutting.some();
        batch.fingerprint(self.session.domain());
        self.add(&batch)
    }

    fn add(&mut self, batch: &Batch) -> Result<(), Error> {
        self.unchanged &= self.archive.tables().condemned.is_empty();
        let Backing { session, builder, writer, .. } = self;
        session.add_to(batch, builder, &mut |open| writer.pack_and_write(open))
    }

    /// Does the next of the walk; false behind its end.
    fn step(&mut self) -> Result<bool, Error> {
        match self.visits.next() {
            None => return Ok(false),
            Some(Visit::Leave) => {
                self.parents.leave();
                self.event(Event::Leave(false))?;
            }
            Some(Visit::Enter(name)) => {
                let found = self.parents.find(&name)?;
                let known = self.parents.enter(&found)?;
                let directory = entry(&name, TreeWhat::Directory(None), 1);
                self.event(Event::Enter(directory, Stat::default(), known))?;
            }
            Some(Visit::File(name, changed, content)) => self.file(&name, changed, &content)?,
        }
        Ok(true)
    }

    fn file(&mut self, name: &[u8], changed: u64, content: &[u8]) -> Result<(), Error> {
        let found = self.parents.find(name)?;
        if let Some(attributes) = attributes(name) {
            self.content(&attributes)?;
            self.event(Event::Attributes)?;
        }
        let stat =
            Stat { inode: 7, changed_seconds: changed as i64, is_settled: true, ..Stat::default() };
        let taken = self.parents.first_sound(&found, |_, before| *before == stat)?;
        let taken = taken.and_then(|entry| match entry.what {
            TreeWhat::File(bytes, map) => Some((bytes, map)),
            _ => None,
        });
        if let Some((_, map)) = &taken
            && self.is_noted(map)
        {
            let what = "content that is noted as damaged was taken over";
            return Err(Error::new(Kind::InvalidInput, what));
        }
        if taken.is_none() {
            let known = self.parents.pages_of(&found)?;
            self.event(Event::Known(known))?;
            // The middle of a long file is a hole.
            let third = content.len() / 3;
            let is_hole =
                content.len() > 3000 && content[third..2 * third].iter().all(|&byte| byte == 0);
            if is_hole {
                self.content(&content[..third])?;
                self.cutting.hole(third as u64);
                self.content(&content[2 * third..])?;
            } else {
                self.content(content)?;
            }
        }
        let file = entry(name, TreeWhat::File(0, FileMap::default()), changed);
        self.event(Event::File(file, stat, taken))
    }
}

impl Backing {
    /// Something of a short file is noted as damaged.
    fn is_noted(&self, map: &FileMap) -> bool {
        let tables = self.session.tables();
        let FileMap::Inline(parts) = map else { return false };
        parts.iter().any(|part| match part {
            Part::Run { first, .. } => tables
                .places(first.container)
                .flatten()
                .any(|home| tables.damaged.contains_key(&home.stored.id)),
            _ => false,
        })
    }
}

impl Sim {
    /// A process puts, or makes a snapshot.
    pub(crate) fn is_putting(&self) -> bool {
        self.actors.putting.is_some() || self.actors.backing.is_some()
    }

    pub(crate) fn tree_move(&mut self) -> Flow {
        match self.trees_rng.below(10) {
            0..6 => self.backup_move(),
            6 => self.forget_move(),
            7 => self.undelete_move(),
            _ => self.read_snapshot(),
        }
    }

    fn backup_move(&mut self) -> Flow {
        let Some(mut backing) = self.actors.backing.take() else { return self.begin_backup() };
        if self.trees_rng.percent(4) {
            self.say(|| format!("backup {} killed", backing.request.id));
            self.reach.hit("a backup killed");
            return Ok(());
        }
        if self.trees_rng.percent(6)
            && let Err(error) = self.checkpoint(&mut backing)
        {
            return self.backup_failed(*backing, &error, false);
        }
        for _ in 0..self.trees_rng.within(1, 8) {
            match backing.step() {
                Ok(true) => {}
                Ok(false) => return self.end_backup(*backing),
                Err(error) => return self.backup_failed(*backing, &error, false),
            }
        }
        self.actors.backing = Some(backing);
        Ok(())
    }

    /// What the backup has so far becomes durable.
    fn checkpoint(&mut self, backing: &mut Backing) -> Result<(), Error> {
        let mut id = [0; 16];
        self.trees_rng.fill(&mut id);
        let id = SnapshotId(id);
        backing.event(Event::Checkpoint(id))?;
        let Backing { session, writer, builder, request, tree, unchanged, .. } = backing;
        session.place_rest(builder, &mut |open| writer.pack_and_write(open))?;
        let Some((id, so_far)) = builder.take_checkpoint() else { return Ok(()) };
        // Directories that are open end earlier in it.
        *unchanged = false;
        session.seal(&mut |open| writer.pack_and_write(open))?;
        self.checkpoints.insert(id.0, tree.clone());
        writer.commit_checkpoint(request, id, &so_far)?;
        self.reach.hit("a checkpoint of a backup");
        self.say(|| format!("checkpoint {id}: {so_far:?}"));
        Ok(())
    }

    fn backup_failed(&mut self, mut backing: Backing, error: &Error, last: bool) -> Flow {
        if error.kind() == Kind::NoSpace
            && self.params.profile == Profile::FullDisk
            && !self.files.is_down()
        {
            self.say(|| "backup: the disk is full".into());
            self.reach.hit("a backup met a full disk");
            self.unsure = None;
            backing.writer.abandon();
            return if self.files.is_down() { Err(Stop::Down) } else { Ok(()) };
        }
        if self.is_of_erased(error, backing.session.domain().number()) {
            self.unsure = None;
            return Ok(());
        }
        if !last {
            self.unsure = None;
        }
        Err(self.judge("put", error))
    }

    fn begin_backup(&mut self) -> Flow {
        self.change_tree();
        let served = self.actors.serving.as_ref();
        let served = served.map(|serving| (serving.archive.clone(), serving.ingest.clone()));
        let is_served = served.is_some();
        let domain = self.domain_of_trees();
        let (archive, session) = match served {
            Some((archive, ingest)) => (archive, Session::in_domain(&ingest, domain)),
            None => {
                let archive = self.open(true)?;
                let ingest = Ingest::begin(&archive, false, false);
                let session = ingest.and_then(|ingest| Session::in_domain(&ingest, domain));
                (archive, session)
            }
        };
        let session = match session {
            // A put runs.
            Err(error) if error.kind() == Kind::Busy && self.actors.putting.is_some() => {
                return Ok(());
            }
            Err(error) => return Err(self.judge("begin", &error)),
            Ok(session) => session,
        };
        let mut id = [0; 16];
        self.trees_rng.fill(&mut id);
        let listed = session.tables().snapshots.listed().filter(|one| one.domain == domain);
        let listed: Vec<Snapshot> = listed.cloned().collect();
        let parent = match self.trees_rng.percent(85) {
            true => self.trees_rng.pick(&listed[listed.len().saturating_sub(3)..]).cloned(),
            false => None,
        };
        let checkpoint = match self.trees_rng.percent(80) {
            true => {
                session.tables().snapshots.checkpoints().rfind(|one| one.domain == domain).cloned()
            }
            false => None,
        };
        let request = BackupRequest {
            id: SnapshotId(id),
            set: if domain == 0 { "s".into() } else { format!("s{domain}") },
            domain: Some(domain),
            now: self.now,
            parent: parent.as_ref().map(|parent| parent.id),
            checkpoint: checkpoint.as_ref().map(|checkpoint| checkpoint.id),
            ..BackupRequest::default()
        };
        let same = parent.as_ref().and_then(|parent| self.kept.get(&parent.id.0));
        let simple = matches!(self.params.profile, Profile::Crashes)
            && !self.params.medium.damages()
            && self.params.spread.is_none()
            // Chunks of an index that is away are stored again.
            && !self.params.index_disk;
        // Pages under an older data key are written again.
        let has_changed = session.tables().data_keys.all().next().is_some();
        let is_same = same.is_some_and(|kept| *kept.tree == self.tree);
        let unchanged = simple && is_same && !has_changed;
        let parents: Vec<&Snapshot> = checkpoint.iter().chain(&parent).collect();
        let mut beside = match Parents::new(&archive, &parents) {
            Err(error) => return Err(self.judge("put", &error)),
            Ok(beside) => beside,
        };
        let writer = StreamWriter::new(&session, self.now);
        let cutting = Cutting::new(&**session.domain());
        let builder = TreeBuilder::new(&archive, session.domain());
        let (found, mut known) = beside.take_root();
        match beside.enter(&found) {
            Err(error) => return Err(self.judge("put", &error)),
            Ok(more) => known.extend(more),
        }
        let tree = Arc::new(self.tree.clone());
        let visits = visits(&tree).into_iter();
        let parents = beside;
        let mut backing = Backing {
            archive,
            session,
            writer,
            cutting,
            builder,
            parents,
            request,
            tree,
            visits,
            unchanged,
            served: is_served,
        };
        let root = entry(b"", TreeWhat::Directory(None), 1);
        self.say(|| format!("backup {} begins", backing.request.id));
        match backing.event(Event::Enter(root, Stat::default(), known)) {
            Ok(()) => {
                self.actors.backing = Some(Box::new(backing));
                Ok(())
            }
            Err(error) => self.backup_failed(backing, &error, false),
        }
    }

    /// Files come, change and go.
    fn change_tree(&mut self) {
        for _ in 0..self.trees_rng.below(4) {
            let rng = &mut self.trees_rng;
            let mut path = String::new();
            for _ in 0..rng.below(3) {
                path += &format!("d{}/", rng.below(3));
            }
            path += &format!("f{}", rng.below(20));
            if rng.percent(25) {
                self.tree.remove(path.as_bytes());
                continue;
            }
            let mut content = Vec::new();
            for _ in 0..rng.below(7) {
                if rng.percent(30) {
                    let mut fresh = vec![0; rng.within(1, 5_000) as usize];
                    rng.fill(&mut fresh);
                    content.extend(fresh);
                } else if let Some(piece) = rng.pick(&self.pool) {
                    content.extend_from_slice(piece);
                }
            }
            self.changes += 1;
            self.tree.insert(path.into_bytes(), (self.changes, Arc::new(content)));
        }
    }

    fn end_backup(&mut self, mut backing: Backing) -> Flow {
        let ended = backing.event(Event::End(0)).and_then(|()| {
            let Backing { session, builder, writer, .. } = &mut backing;
            session.place_rest(builder, &mut |open| writer.pack_and_write(open))?;
            session.seal(&mut |open| writer.pack_and_write(open))?;
            backing.builder.built()
        });
        let built = match ended {
            Ok(built) => built,
            Err(error) => return self.backup_failed(backing, &error, false),
        };
        if backing.unchanged && !self.noted && built.pages > 0 {
            let message =
                format!("{} pages of a tree that did not change were written", built.pages);
            return Err(Failure::new(Checker::DuplicatesFound, message).into());
        }
        let id = backing.request.id;
        self.unsure = Some(Unsure::Backup(id.0, backing.tree.clone()));
        match backing.writer.commit_snapshot(&backing.request, &built) {
            Ok(_) => {
                self.say(|| format!("backup {id} committed: {built:?}"));
                if built.pages_taken > 0 {
                    self.reach.hit("pages of a parent were taken over");
                }
                self.kept.insert(id.0, Kept { tree: backing.tree.clone(), forgotten: None });
                self.unsure = None;
                backing.writer.close().map_err(|error| self.judge("put", &error))
            }
            Err(error) => self.backup_failed(backing, &error, true),
        }
    }

    fn forget_move(&mut self) -> Flow {
        let listed: Vec<[u8; 16]> = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.forgotten.is_none())
            .map(|(&id, _)| id)
            .collect();
        let Some(&id) = self.trees_rng.pick(&listed) else { return Ok(()) };
        let archive = self.admin()?;
        self.unsure = Some(Unsure::Forget(id, true));
        // The clock of this process may be wrong.
        let at = [0, self.now, 10 * self.now][self.trees_rng.below(3) as usize];
        match onefold_archive::forget(&archive, &[SnapshotId(id)], at) {
            Ok(()) => {
                self.say(|| format!("forgot {}", SnapshotId(id)));
                self.forgotten(id, true);
                self.unsure = None;
                Ok(())
            }
            Err(error) => Err(self.judge("forget", &error)),
        }
    }

    pub(crate) fn forgotten(&mut self, id: [u8; 16], is: bool) {
        let now = self.now;
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.forgotten = is.then_some(now);
        }
    }

    fn undelete_move(&mut self) -> Flow {
        let forgotten: Vec<[u8; 16]> = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.forgotten.is_some())
            .map(|(&id, _)| id)
            .collect();
        let Some(&id) = self.trees_rng.pick(&forgotten) else { return Ok(()) };
        let archive = self.admin()?;
        self.unsure = Some(Unsure::Forget(id, false));
        match onefold_archive::undelete(&archive, &[SnapshotId(id)]) {
            Ok(()) => {
                self.reach.hit("a snapshot was undeleted");
                self.forgotten(id, false);
                self.unsure = None;
                Ok(())
            }
            Err(error) if error.kind() == Kind::NotFound => {
                self.unsure = None;
                self.may_be_gone(id)
            }
            Err(error) => Err(self.judge("undelete", &error)),
        }
    }

    /// A forgotten snapshot is gone; the time of the trash must be over.
    fn may_be_gone(&mut self, id: [u8; 16]) -> Flow {
        let kept = self.kept.remove(&id);
        let at = kept.and_then(|kept| kept.forgotten);
        if at.is_some_and(|at| self.now >= at + self.params.trash) {
            self.reach.hit("a forgotten snapshot expired");
            return Ok(());
        }
        let id = SnapshotId(id);
        Err(Failure::new(Checker::DurableSurvives, format!("snapshot {id} is gone")).into())
    }

    /// Reads a snapshot, listed or forgotten.
    fn read_snapshot(&mut self) -> Flow {
        let ids: Vec<[u8; 16]> = self.kept.keys().copied().collect();
        let Some(&id) = self.trees_rng.pick(&ids) else { return Ok(()) };
        let archive = self.open(false)?;
        match TreeReader::new(&archive) {
            Ok(mut reader) => {
                self.compare_snapshot(&mut reader, id)?;
                if self.restores_rng.percent(60) { self.restore_move() } else { Ok(()) }
            }
            Err(error) => Err(self.judge("reader", &error)),
        }
    }

    /// After a crash: snapshots are there, byte for byte.
    pub(crate) fn look_at_snapshots(&mut self, archive: &Arc<Archive>) -> Flow {
        if !self.upgraded.kinds.trees {
            return Ok(());
        }
        let mut reader = TreeReader::new(archive).map_err(|error| self.judge("reader", &error))?;
        let known = |snapshot: &&Snapshot| self.kept.contains_key(&snapshot.id.0);
        let tables = reader.tables().clone();
        let shown = tables.snapshots.listed().chain(tables.snapshots.forgotten());
        let mut shown = shown.filter(|one| !Sim::is_gone(&tables, one.domain));
        if let Some(unknown) = shown.find(|snapshot| !known(snapshot)) {
            let message = format!("snapshot {} is there, and nobody made it", unknown.id);
            return Err(Failure::new(Checker::DurableSurvives, message).into());
        }
        let checkpoints = tables.snapshots.checkpoints();
        for checkpoint in checkpoints.filter(|one| !Sim::is_gone(&tables, one.domain)) {
            self.compare_checkpoint(&mut reader, checkpoint)?;
        }
        for id in self.kept.keys().copied().collect::<Vec<_>>() {
            self.compare_snapshot(&mut reader, id)?;
        }
        Ok(())
    }

    /// What a checkpoint has is what the backup found.
    fn compare_checkpoint(&mut self, reader: &mut TreeReader, checkpoint: &Snapshot) -> Flow {
        let Some(tree) = self.checkpoints.get(&checkpoint.id.0).cloned() else {
            let message = format!("checkpoint {} is there, and nobody made it", checkpoint.id);
            return Err(Failure::new(Checker::DurableSurvives, message).into());
        };
        match read_tree(reader, checkpoint) {
            Ok(found) => {
                let is = |(path, content): (&Vec<u8>, &Arc<Vec<u8>>)| {
                    tree.get(path).is_some_and(|(_, expected)| expected == content)
                };
                if found.iter().all(is) {
                    self.reach.hit("a checkpoint was read after a crash");
                    return Ok(());
                }
                let message = format!("checkpoint {} has other files", checkpoint.id);
                Err(Failure::new(Checker::NeverWrong, message).into())
            }
            Err(error) if error.kind() == Kind::Corrupt && self.damaged => Ok(()),
            Err(error) if self.files.is_down() => Err(self.judge("read", &error)),
            Err(error) => {
                let message = format!("checkpoint {}: {error:?}", checkpoint.id);
                Err(Failure::new(Checker::DurableSurvives, message).into())
            }
        }
    }

    fn compare_snapshot(&mut self, reader: &mut TreeReader, id: [u8; 16]) -> Flow {
        let Some(kept) = self.kept.get(&id).cloned() else { return Ok(()) };
        let tables = reader.tables().clone();
        let snapshot = match tables.snapshots.get(SnapshotId(id)) {
            Ok(snapshot) => snapshot,
            Err(_) => return self.may_be_gone(id),
        };
        if snapshot.forgotten.is_some() != kept.forgotten.is_some() {
            let message = format!(
                "snapshot {} is forgotten or not: {kept:?}",
                snapshot.id,
                kept = kept.forgotten
            );
            return Err(Failure::new(Checker::DurableSurvives, message).into());
        }
        match read_tree(reader, snapshot) {
            Ok(found) => {
                let expected = kept.tree.iter().map(|(path, (_, content))| (path, content));
                if found.iter().eq(expected) {
                    return Ok(());
                }
                let message = format!("snapshot {} has other files", snapshot.id);
                Err(Failure::new(Checker::NeverWrong, message).into())
            }
            Err(error) if error.kind() == Kind::Corrupt && self.damaged => {
                self.reach.hit("damage of a snapshot was told");
                Ok(())
            }
            Err(error) if self.files.is_down() => Err(self.judge("read", &error)),
            Err(error) => {
                let message = format!("snapshot {}: {error:?}", snapshot.id);
                Err(Failure::new(Checker::DurableSurvives, message).into())
            }
        }
    }

    pub(crate) fn forget_all(&mut self) -> Flow {
        let archive = self.admin()?;
        let ids: Vec<SnapshotId> = archive
            .refresh()
            .map_err(|e| self.judge("forget", &e))?
            .snapshots
            .listed()
            .map(|snapshot| snapshot.id)
            .collect();
        if !ids.is_empty() {
            onefold_archive::forget(&archive, &ids, self.now)
                .map_err(|e| self.judge("forget", &e))?;
        }
        self.kept.clear();
        Ok(())
    }
}

/// All files of a snapshot.
fn read_tree(
    reader: &mut TreeReader,
    snapshot: &Snapshot,
) -> Result<BTreeMap<Vec<u8>, Arc<Vec<u8>>>, Error> {
    let root = reader.root(snapshot)?;
    let mut files = BTreeMap::new();
    let mut wanted = vec![(Vec::new(), root.directory, snapshot.stats)];
    while let Some((path, directory, stats)) = wanted.pop() {
        let TreeWhat::Directory(top) = directory.what else { continue };
        let mut entries = Entries::new(top, stats);
        while let Some((entry, stat)) = entries.next(reader)? {
            let mut path = path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&entry.name);
            if let Some(expected) = attributes(&entry.name)
                && matches!(entry.what, TreeWhat::File(..))
                && encode_attributes(&reader.attributes(&entry)?) != expected
            {
                return Err(Error::new(Kind::InvalidInput, "other attributes"));
            }
            match &entry.what {
                TreeWhat::File(bytes, map) => {
                    let mut content = Vec::new();
                    reader.read(*bytes, map, Verify::Chunks, &mut |part| {
                        match part {
                            Content::Bytes(part) => content.extend_from_slice(part),
                            Content::Zeroes(n) | Content::Hole(n) => {
                                content.resize(content.len() + n as usize, 0);
                            }
                        }
                        Ok(())
                    })?;
                    if reader.find(snapshot, &path)? != entry {
                        return Err(Error::new(Kind::InvalidInput, "another entry at the path"));
                    }
                    files.insert(path, Arc::new(content));
                }
                _ => wanted.push((path, entry, stat.and_then(|stat| stat.pages))),
            }
        }
    }
    Ok(files)
}
