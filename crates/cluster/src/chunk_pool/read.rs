//! Reading chunks: the content that a chunk's name promises, or an error.

use onefold_core::{
    checksum, compress,
    object::{ObjectName, Read, ReadPart, ReadResult, Refusal},
};

use super::ChunkPool;
use crate::{
    format::{CHUNK_MAX, Chunk, corrupt, key},
    rules::Rule,
};

/// The content of a chunk, if it matches the name.
fn checked(
    secret: &[u8; 32],
    chunk: &Chunk,
    answer: &ReadResult,
    compares: bool,
) -> Result<Vec<u8>, Refusal> {
    let damaged = || Refusal::Failed(corrupt(format_args!("chunk {} is damaged", chunk.name())));
    let head = answer.xattr(1).ok_or_else(damaged)?;
    if head.len() != 5 || head[1..] != chunk.id.length.to_le_bytes() {
        return Err(damaged());
    }
    let data = match head[0] {
        0 => answer.data(0).to_vec(),
        1 => compress::unpack(answer.data(0), chunk.id.length as usize).map_err(|_| damaged())?,
        _ => return Err(damaged()),
    };
    let is_named = || checksum::chunk_name(secret, &data) == chunk.id.hash;
    if data.len() == chunk.id.length as usize && (!compares || is_named()) {
        Ok(data)
    } else {
        Err(damaged())
    }
}

impl ChunkPool {
    /// Reads chunks, all in flight together; each is hashed against its name.
    pub(crate) fn read_chunks(&self, chunks: &[Chunk]) -> Vec<Result<Vec<u8>, Refusal>> {
        let parts =
            || vec![ReadPart::Data(0, 2 * u64::from(CHUNK_MAX)), ReadPart::Xattr(key::HEAD)];
        let batch: Vec<Read> = chunks
            .iter()
            .map(|chunk| Read { object: ObjectName::chunk(chunk.name()), parts: parts() })
            .collect();
        let answers = self.kernel.read_all(&batch);
        let compares = self.kernel.keeps(Rule::ChunkComparedBeforeTrusted);
        let content = |(chunk, answer): (&Chunk, Result<ReadResult, Refusal>)| match answer {
            Err(Refusal::Failed(_)) if !self.kernel.keeps(Rule::UnreadableChunkFails) => {
                Ok(vec![0; chunk.id.length as usize])
            }
            answer => checked(self.kernel.hashing().chunk_secret(), chunk, &answer?, compares),
        };
        chunks.iter().zip(answers).map(content).collect()
    }
}
