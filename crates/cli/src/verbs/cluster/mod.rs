//! `onefold cluster`: stores of the cluster engine.
//!
//! A store is a folder, which one process owns at a time: while it is served, the other verbs say
//! so. Or it is in two pools of a Ceph cluster, where everybody may come at any time.

mod estimate;
mod options;
mod status;
mod workers;

use std::{fs::File, io, path::Path};

use onefold_backend::{
    EmbeddedStore, RadosObjects,
    new_file::NewFile,
    rados::{Connection, TIMEOUT},
    random::random_bytes,
};
use onefold_cluster::{Format, Settings, What, create, is_made};
use onefold_core::{Error, object::PoolKind};
use serde_json::json;

use self::{
    estimate::estimate,
    options::{CutName, Verb, VolumeVerb},
    workers::work,
};
pub(crate) use self::{
    options::{DedupName, Options, Pace, threads},
    status::{check, scrub, status},
    workers::Workers,
};
use crate::verbs::NOT_ENCRYPTED;
pub(crate) use onefold::parts::cluster_store::{Backing, Url, store_at};
use onefold::parts::{cluster_store::Opened, operator};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// Does what was asked for.
pub(crate) fn run(options: Options) -> Result<(), Failure> {
    match options.verb {
        Verb::Create {
            store,
            metadata_pool,
            chunk_pool,
            force,
            chunk,
            cut,
            volume_cut,
            no_compression,
            answer,
        } => {
            let format =
                Format { volume_cut: volume_cut.into(), ..format(chunk, cut, !no_compression)? };
            format.check()?;
            make(&store, metadata_pool.as_deref(), chunk_pool.as_deref(), force, &format)?;
            answer.tell(
                &json!({ "created": store.to_string(), "encrypted": false }),
                format_args!("created {store}\n{NOT_ENCRYPTED}"),
            )
        }
        Verb::Volume(options) => volume(options.verb),
        Verb::Put { store, name, file, answer } => put(&store, &name, &file, answer),
        Verb::Get { store, name, file, answer } => get(&store, &name, &file, answer),
        Verb::Ls { store, answer } => list(&store, What::Put, answer),
        Verb::Rm { store, name, answer } => {
            let opened = Opened::open(&store, Settings::default())?;
            opened.session.delete(&name, What::Put)?;
            while opened.session.delete_step()? {}
            answer.tell(&json!({ "removed": name }), format_args!("removed {name:?}"))
        }
        Verb::Worker(options) => work(&options),
        Verb::Estimate { store, pool, chunk, cut, answer } => {
            estimate(&store, &pool, &format(chunk, cut, true)?, answer.json)
        }
        Verb::Status { store, answer } => status(&store, answer.json),
        Verb::Scrub { store, deep, answer } => scrub(&store, deep, answer),
    }
}

fn format(chunk: Size, cut: CutName, compress: bool) -> Result<Format, Failure> {
    let sizes = [16 << 10, 32 << 10, 64 << 10];
    let Some(chunk_bytes) = u32::try_from(chunk.0).ok().filter(|bytes| sizes.contains(bytes))
    else {
        return Err(Failure::usage("--chunk is 16K, 32K or 64K"));
    };
    Ok(Format {
        chunk_bytes,
        cut: cut.into(),
        compress,
        ..Format::new(random_bytes()?, random_bytes()?, PoolKind::Replicated)
    })
}

fn make(
    url: &Url,
    metadata: Option<&str>,
    chunks: Option<&str>,
    force: bool,
    format: &Format,
) -> Result<(), Failure> {
    match (url, metadata, chunks) {
        (Url::Folder(folder), None, None) => {
            let store = EmbeddedStore::create_as(folder, PoolKind::Replicated, operator::word())?;
            EmbeddedStore::exposed(folder).iter().for_each(|sentence| operator::warn(sentence));
            create(&store.session(), format)?;
        }
        (Url::Folder(_), ..) => {
            return Err(Failure::usage("a folder has no pools; they are for rados:"));
        }
        (Url::Rados(_, location), Some(metadata), Some(chunks)) if metadata != chunks => {
            let connection = Connection::open(location.configuration.as_deref(), TIMEOUT)?;
            let (metadata, chunks) = (connection.pool(metadata)?, connection.pool(chunks)?);
            connection.check_pools(&[&metadata, &chunks], force)?;
            let store = RadosObjects::new(connection.clone(), &metadata, &chunks)?;
            if is_made(&store)? {
                return Err(Failure::new("there is a store already"));
            }
            // Tags without a store are as if nothing had been done; a store without tags is not
            // found.
            connection.tag(&metadata, &chunks)?;
            create(&store, &Format { chunks: chunks.kind, ..format.clone() })?;
        }
        (Url::Rados(..), ..) => {
            return Err(Failure::usage(
                "rados: needs --metadata-pool and --chunk-pool, two different ones",
            ));
        }
    }
    Ok(())
}

fn whole_blocks(size: Size) -> Result<u64, Failure> {
    size.0.checked_next_multiple_of(4096).ok_or_else(|| Failure::usage("the size is too large"))
}

fn volume(verb: VolumeVerb) -> Result<(), Failure> {
    match verb {
        VolumeVerb::Create { store, name, size, answer } => {
            let bytes = whole_blocks(size)?;
            Opened::open(&store, Settings::default())?.session.create_volume(&name, bytes)?;
            answer.tell(
                &json!({ "done": "create", "name": name, "bytes": bytes }),
                format_args!("created volume {name:?} of {}", Size(bytes)),
            )
        }
        VolumeVerb::List { store, answer } => list(&store, What::Volume, answer),
        VolumeVerb::Resize { store, name, size, answer } => {
            let bytes = whole_blocks(size)?;
            Opened::open(&store, Settings::default())?.session.resize_volume(&name, bytes)?;
            answer.tell(
                &json!({ "done": "resize", "name": name, "bytes": bytes }),
                format_args!("resized volume {name:?} to {}", Size(bytes)),
            )
        }
        VolumeVerb::Delete { store, name, answer } => {
            let opened = Opened::open(&store, Settings::default())?;
            opened.session.delete(&name, What::Volume)?;
            while opened.session.delete_step()? {}
            answer.tell(
                &json!({ "done": "delete", "name": name }),
                format_args!("deleted volume {name:?}"),
            )
        }
    }
}

fn list(store: &Url, what: What, answer: Answer) -> Result<(), Failure> {
    let names = Opened::look(store)?.session.names()?;
    if answer.json {
        let lines = names
            .iter()
            .filter(|(_, named)| named.what == what)
            .map(|(name, named)| json!({ "name": name, "bytes": named.bytes }));
        return output::json(&lines.collect::<Vec<_>>());
    }
    let mut any = false;
    for (name, named) in names.iter().filter(|(_, named)| named.what == what) {
        any = true;
        output::line(format_args!("{:>9}  {}", Size(named.bytes).to_string(), name.escape_debug()));
    }
    if !any {
        output::line(if what == What::Volume { "no volumes" } else { "nothing was put" });
    }
    Ok(())
}

fn put(store: &Url, name: &str, file: &Path, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let bytes = if file.as_os_str() == "-" {
        opened.session.put(name, &mut io::stdin().lock())?
    } else {
        let mut source = File::open(file).map_err(|e| Error::from_io(file.display(), e))?;
        opened.session.put(name, &mut source)?
    };
    while opened.session.delete_step()? {}
    answer.tell(
        &json!({ "put": name, "bytes": bytes }),
        format_args!("put {name:?}, {}", Size(bytes)),
    )
}

fn get(store: &Url, name: &str, file: &Path, answer: Answer) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    if file.as_os_str() == "-" {
        if answer.json {
            return Err(Failure::usage("standard output has the data: --json needs a file"));
        }
        opened.session.get(name, &mut io::stdout().lock())?;
        return Ok(());
    }
    let new = NewFile::create(file)?;
    let bytes = opened.session.get(name, &mut new.file())?;
    new.publish()?;
    answer.tell(
        &json!({ "got": name, "bytes": bytes }),
        format_args!("got {name:?}, {}", Size(bytes)),
    )
}
