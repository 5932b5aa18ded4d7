//! A snapshot on its way into an archive, on one thread: what the engine's stages do, one after the other.

use std::sync::Arc;

use onefold_archive::{
    Archive, BackupRequest, Batch, CopySink, Cutting, Event, Ingest, Parents, Session, Snapshot,
    SnapshotId, StoredChunk, StreamWriter, TreeBuilder,
};
use onefold_core::{Fingerprint, Result};

/// Stores what is told.
pub(super) struct Storing {
    request: BackupRequest,
    session: Session,
    writer: StreamWriter,
    cutting: Cutting,
    builder: TreeBuilder,
    parents: Parents,
    /// Checkpoints that were committed.
    pub(super) checkpoints: u64,
    /// Chunks that were found by their fingerprints alone.
    pub(super) named: u64,
    /// Bytes that were taken over.
    pub(super) taken: u64,
}

impl Storing {
    pub(super) fn begin(archive: &Arc<Archive>, request: &BackupRequest) -> Result<Storing> {
        let session = Session::on(&Ingest::begin(archive, false, false)?)?;
        let tables = session.tables().clone();
        let all = [request.checkpoint, request.parent].into_iter().flatten();
        let parents: Vec<&Snapshot> = all.filter_map(|id| tables.snapshots.get(id).ok()).collect();
        Ok(Storing {
            request: request.clone(),
            writer: StreamWriter::new(&session, request.now),
            cutting: Cutting::new(&**session.domain()),
            builder: TreeBuilder::new(archive, session.domain()),
            parents: Parents::new(archive, &parents)?,
            session,
            checkpoints: 0,
            named: 0,
            taken: 0,
        })
    }

    fn place(&mut self, batch: Option<Batch>) -> Result<()> {
        let Some(mut batch) = batch else { return Ok(()) };
        batch.fingerprint(self.session.domain());
        let Storing { session, builder, writer, .. } = self;
        session.add_to(&batch, builder, &mut |open| writer.pack_and_write(open))
    }

    fn seal(&mut self) -> Result<()> {
        let Storing { session, builder, writer, .. } = self;
        session.place_rest(builder, &mut |open| writer.pack_and_write(open))?;
        session.seal(&mut |open| writer.pack_and_write(open))
    }

    /// Commits it.
    pub(super) fn end(mut self) -> Result<Snapshot> {
        self.seal()?;
        let built = self.builder.built()?;
        let made = self.writer.commit_snapshot(&self.request, &built)?;
        self.writer.close()?;
        Ok(made)
    }
}

impl CopySink for Storing {
    fn bytes(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.cutting.room();
            let part = bytes.len().min(room.len());
            room[..part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            let batch = self.cutting.advance(part);
            self.place(batch)?;
        }
        Ok(())
    }

    fn zeroes(&mut self, bytes: u64) -> Result<()> {
        let batch = self.cutting.zeroes(bytes);
        self.place(batch)
    }

    fn hole(&mut self, bytes: u64) -> Result<()> {
        let batch = self.cutting.hole(bytes);
        self.place(batch)
    }

    fn event(&mut self, event: Event) -> Result<()> {
        self.builder.expect(event);
        let full = self.cutting.mark();
        self.place(full)?;
        let rest = self.cutting.some();
        self.place(Some(rest))
    }

    fn checkpoint(&mut self, id: SnapshotId) -> Result<()> {
        self.event(Event::Checkpoint(id))?;
        let Some((id, so_far)) = self.builder.take_checkpoint() else { return Ok(()) };
        self.seal()?;
        self.writer.commit_checkpoint(&self.request, id, &so_far)?;
        self.checkpoints += 1;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    fn stored(&mut self, of: &[Fingerprint]) -> Result<Vec<Option<StoredChunk>>> {
        let found = self.session.stored(of)?;
        self.named += found.iter().flatten().count() as u64;
        Ok(found)
    }

    fn parents(&mut self) -> &mut Parents {
        &mut self.parents
    }
}
