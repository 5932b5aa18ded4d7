//! `onefold estimate` of a pool of a Ceph cluster.

use onefold_backend::{
    RadosObjects,
    rados::{Connection, TIMEOUT},
};
use onefold_cluster::{Estimate, Format};
use onefold_core::{
    Error, Kind,
    object::{ObjectName, ObjectStore, Pool, Read, ReadPart, Refusal},
};
use serde_json::json;

use onefold::parts::cluster_store::Url;
use onefold_console::{
    failure::Failure,
    output,
    size::{Size, counted, grouped},
};

/// Names of a page when a pool is looked through.
const PAGE: usize = 256;

/// Bytes of an object that are read at once.
const PIECE: u64 = 16 << 20;

pub(super) fn estimate(
    url: &Url,
    pool: &str,
    format: &Format,
    as_json: bool,
) -> Result<(), Failure> {
    let Url::Rados(_, location) = url else {
        return Err(Failure::usage("a pool is that of a Ceph cluster, rados:[CONF]"));
    };
    let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
    let pool = connection.pool(pool)?;
    let store = RadosObjects::reader(connection, &pool)?;
    let failed = |refusal: Refusal| match refusal {
        Refusal::Denied(error) => error,
        refusal => Error::new(Kind::Io, format!("pool '{}': {refusal}", pool.name.escape_debug())),
    };
    let mut estimate = Estimate::new(format.chunk_bytes, format.cut, format.compress);
    let mut from = None;
    loop {
        let page = store.list(Pool::Chunks, from.as_deref(), PAGE).map_err(failed)?;
        for name in &page.names {
            let (mut data, mut there) = (Vec::new(), true);
            while there {
                let part = ReadPart::Data(data.len() as u64, PIECE);
                match store
                    .read(&[Read { object: ObjectName::chunk(name), parts: vec![part] }])
                    .remove(0)
                {
                    Ok(answer) => {
                        data.extend_from_slice(answer.data(0));
                        there = answer.data(0).len() as u64 == PIECE;
                    }
                    // The object was removed meanwhile.
                    Err(Refusal::Missing) => there = false,
                    Err(refusal) => return Err(failed(refusal).into()),
                }
            }
            estimate.object(&data);
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let found = estimate.result();
    let copies = pool.copies();
    let (now, then) = (found.bytes as f64 * copies, found.stored(copies, copies) as f64);
    let (low, different, high) = found.different_bytes;
    let saved = if now == 0.0 { 0.0 } else { 100.0 - 100.0 * then / now };
    if as_json {
        output::json_line(&json!({
            "objects": found.objects, "bytes": found.bytes, "zero_bytes": found.zero_bytes,
            "chunks": found.chunks, "different_chunks": found.different,
            "different_bytes": different, "different_bytes_low": low, "different_bytes_high": high,
            "packed_bytes": found.packed_bytes,
            "metadata_bytes": found.metadata_bytes, "copies": copies, "stored_bytes": then,
            "saved_percent": saved, "sampled_one_of": found.one_of,
        }));
        return Ok(());
    }
    output::line(format_args!(
        "content     {} in {}, {} of it zeroes",
        Size(found.bytes),
        counted(found.objects, "object"),
        Size(found.zero_bytes)
    ));
    match found.one_of {
        1 => output::line(format_args!(
            "different   {} of {}, {}",
            grouped(found.different),
            counted(found.chunks, "chunk"),
            Size(different)
        )),
        n => output::line(format_args!(
            "different   {}, between {} and {} (95 %); one of {n} chunk names was counted",
            Size(different),
            Size(low),
            Size(high)
        )),
    }
    output::line(format_args!("compressed  {}", Size(found.packed_bytes)));
    output::line(format_args!("metadata    {}", Size(found.metadata_bytes)));
    output::line(format_args!(
        "space       {} instead of {}, with {copies} copies",
        Size(then as u64),
        Size(now as u64)
    ));
    output::line(format_args!("saved       {saved:.1} %"));
    Ok(())
}
