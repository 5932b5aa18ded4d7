//! Rot is found and named; what is put again then is whole, and makes whole what was lost.

use std::{collections::BTreeMap, sync::Arc};

use onefold_archive::{
    Archive, CheckReport as Report, Content, Cutting, Ended, Reader, Session, Shape, StreamWriter,
    Verify, Writing, check, check_one, record_damage, restore_chunks,
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

/// The name of what is put again.
const AGAIN: &str = "s-again";

impl Sim {
    /// A scrub, a put of what it found to be lost, and a heal.
    pub(crate) fn repair_move(&mut self) -> Flow {
        let archive = self.open(true)?;
        let report = self.scrub(&archive, None)?;
        record_damage(&archive, &report.rotten).map_err(|e| self.judge("note", &e))?;
        let Some(name) = report.hit.iter().find(|name| self.streams.contains_key(*name)) else {
            return Ok(());
        };
        let content = self.streams[name].clone();
        match put_at_once(&archive, self.now, &content) {
            Ok(()) => drop(self.streams.insert(AGAIN.to_owned(), content.clone())),
            Err(error) if error.kind() == Kind::Busy => return Ok(()),
            // Whether it is there is of no account here: the life ends.
            Err(error) => {
                self.unsure = Some(Unsure::Put(AGAIN.to_owned(), content));
                return Err(self.judge("put", &error));
            }
        }
        self.reach.hit("what was lost was put again");
        match read(&archive, AGAIN) {
            Ok(bytes) if bytes == *content => {}
            Ok(_) => {
                return Err(Failure::new(
                    Checker::NeverWrong,
                    format!("{AGAIN} is not what was put"),
                )
                .into());
            }
            Err(_) if self.files.is_down() => return Err(Stop::Down),
            Err(error) => {
                return Err(Failure::new(
                    Checker::DurableSurvives,
                    format!("put after a scrub, and lost: {error}"),
                )
                .into());
            }
        }
        let report = self.scrub(&archive, None)?;
        match restore_chunks(&archive, &report.lost, &mut |_, _| {}) {
            Ok(healed) if healed.chunks > 0 => self.reach.hit("lost chunks were healed"),
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Busy => return Ok(()),
            Err(error) => return Err(self.judge("heal", &error)),
        }
        archive.refresh().map_err(|e| self.judge("refresh", &e))?;
        let report = self.scrub(&archive, Some(name))?;
        let recipe = |problem: &String| problem.contains("its recipe can't be read");
        if report.hit.contains(name) && !report.problems.iter().any(recipe) {
            let problems = report.problems.join("; ");
            return Err(Failure::new(
                Checker::StoreCheck,
                format!("{name} was not healed by the same content: {problems}"),
            )
            .into());
        }
        Ok(())
    }

    /// A scrub says that chunks are damaged which are not: puts store them anew, and nothing is
    /// lost by it, whoever puts, reads and collects meanwhile.
    pub(crate) fn record_damage_move(&mut self) -> Flow {
        let quiet = self.params.profile == Profile::Crashes
            && self.params.collects
            && self.params.spread.is_none();
        if !quiet || !self.aside.percent(40) {
            return Ok(());
        }
        let archive = self.open(true)?;
        let tables = archive.tables();
        if self.aside.percent(20) {
            return self.restore_recorded(&archive);
        }
        let all = tables.containers.iter().map(|container| {
            container.map(|container| (container.stored.id, container.stored.chunks as usize))
        });
        let all: Vec<_> = all.collect::<Result<_, _>>().map_err(|e| self.judge("look-up", &e))?;
        let Some(&(id, chunks)) = self.aside.pick(&all) else { return Ok(()) };
        let mut bits = vec![0; chunks.div_ceil(8)];
        for n in (0..chunks).filter(|_| self.aside.percent(50)) {
            bits[n / 8] |= 1 << (n % 8);
        }
        // Also when its sync fails: others may have read it.
        self.noted = true;
        record_damage(&archive, &BTreeMap::from([(id, bits)]))
            .map_err(|e| self.judge("note", &e))?;
        self.say(|| format!("chunks of container {id} are noted as damaged"));
        self.reach.hit("damage was noted of what is whole");
        Ok(())
    }

    /// Repairs chunks that are recorded as damaged and are whole again on the medium.
    pub(crate) fn restore_recorded(&mut self, archive: &Arc<Archive>) -> Flow {
        if archive.tables().damaged.is_empty() {
            return Ok(());
        }
        let report =
            check(archive, false, &mut |_, _, _| {}).map_err(|e| self.judge("check", &e))?;
        match restore_chunks(archive, &report.lost, &mut |_, _| {}) {
            Ok(healed) if healed.chunks > 0 => {
                self.say(|| format!("{} chunks that were noted are whole", healed.chunks));
                self.reach.hit("what was noted was whole");
            }
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Busy => return Ok(()),
            Err(error) => return Err(self.judge("heal", &error)),
        }
        archive.refresh().map(|_| ()).map_err(|e| self.judge("refresh", &e))
    }

    fn scrub(&mut self, archive: &Arc<Archive>, only: Option<&str>) -> Result<Report, Stop> {
        let found = match only {
            Some(name) => check_one(archive, name, true, &mut |_, _, _| {}),
            None => check(archive, true, &mut |_, _, _| {}),
        };
        // Without power nothing is whole.
        if self.files.is_down() {
            return Err(Stop::Down);
        }
        found.map_err(|e| self.judge("check", &e))
    }
}

fn put_at_once(archive: &Arc<Archive>, now: u64, content: &[u8]) -> Result<(), Error> {
    let mut session = Session::begin(archive, false)?;
    let mut writer = StreamWriter::new(&session, now);
    let (mut cutting, mut writing) = (Cutting::new(archive), Writing::default());
    let mut rest = content;
    loop {
        let room = cutting.room();
        let n = room.len().min(rest.len());
        room[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        let batch = cutting.advance(n);
        let last = rest.is_empty();
        for mut batch in batch.into_iter().chain(last.then(|| cutting.end())) {
            batch.fingerprint(session.domain());
            session.add(&batch, &mut writing, &mut |open| writer.pack_and_write(open))?;
        }
        if last {
            break;
        }
    }
    let data = session.end_recipe(writing, &mut |open| writer.pack_and_write(open))?;
    session.seal(&mut |open| writer.pack_and_write(open))?;
    writer.commit(Ended {
        name: AGAIN.to_owned(),
        shape: Shape::Bytes,
        created: now,
        data,
        listing: Vec::new(),
    })?;
    writer.close()
}

fn read(archive: &Arc<Archive>, name: &str) -> Result<Vec<u8>, Error> {
    let mut reader = Reader::new(archive)?;
    let stream = reader.stream(name)?;
    let mut bytes = Vec::new();
    reader.read(&stream.recipe, Verify::Chunks, &mut |part| {
        match part {
            Content::Bytes(part) => bytes.extend_from_slice(part),
            Content::Zeroes(n) | Content::Hole(n) => bytes.resize(bytes.len() + n as usize, 0),
        }
        Ok(())
    })?;
    Ok(bytes)
}
