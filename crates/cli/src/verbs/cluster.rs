//! Verbs on a store of the cluster engine: streams, which are its objects.
//!
//! A folder is owned by one process at a time: while it is served, verbs say so. On Ceph everybody
//! may come at any time.

use std::{collections::BTreeMap, fs::File, io, path::Path};

use onefold_backend::new_file::NewFile;
use onefold_cluster::{Session, Settings, What, format::ObjectId};
use onefold_core::Error;
use serde_json::json;

use onefold::parts::cluster_store::{Opened, Url};
use onefold_console::{
    failure::Failure,
    output::{self, Answer},
    size::Size,
};

/// What objects are called in sentences: with the names of their volumes and streams, as far as the
/// names can be read.
pub(super) fn titles(
    session: &Session,
    objects: impl ExactSizeIterator<Item = ObjectId>,
) -> Vec<String> {
    let names = match objects.len() {
        0 => Vec::new(),
        _ => session.names().unwrap_or_default(),
    };
    let names: BTreeMap<u64, (&str, What)> =
        names.iter().map(|(name, named)| (named.id, (name.as_str(), named.what))).collect();
    let title = |object: ObjectId| match names.get(&object.volume) {
        Some((name, What::Volume)) => {
            format!("object {object} of volume '{}'", name.escape_debug())
        }
        Some((name, What::Put)) => format!("object {object} of stream '{}'", name.escape_debug()),
        None => format!("object {object}"),
    };
    objects.map(title).collect()
}

/// Lists what has a name: volumes or streams.
pub(crate) fn list(store: &Url, what: What, answer: Answer) -> Result<(), Failure> {
    let names = Opened::look(store)?.session.names()?;
    let names = names.iter().filter(|(_, named)| named.what == what);
    if answer.json {
        let lines = names.map(|(name, named)| json!({ "name": name, "bytes": named.bytes }));
        return output::json(&lines.collect::<Vec<_>>());
    }
    let mut any = false;
    for (name, named) in names {
        any = true;
        output::line(format_args!("{:>9}  {}", Size(named.bytes).to_string(), name.escape_debug()));
    }
    if !any {
        output::line(if what == What::Volume { "no volumes" } else { "no streams" });
    }
    Ok(())
}

/// Stores a file, or standard input, under a name; what has the name already is replaced.
pub(super) fn put(
    store: &Url,
    name: &str,
    file: Option<&Path>,
    answer: Answer,
) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let bytes = match file {
        None => opened.session.put(name, &mut io::stdin().lock())?,
        Some(file) => {
            let mut source = File::open(file).map_err(|e| {
                Error::from_io(format_args!("{} can't be opened", file.display()), e)
            })?;
            opened.session.put(name, &mut source)?
        }
    };
    while opened.session.delete_step()? {}
    answer.tell(
        &json!({ "name": name, "bytes": bytes }),
        format_args!("stored '{}', {}", name.escape_debug(), Size(bytes)),
    )
}

/// Writes a stream to a new file, or to standard output.
pub(super) fn get(
    store: &Url,
    name: &str,
    file: Option<&Path>,
    answer: Answer,
) -> Result<(), Failure> {
    let opened = Opened::look(store)?;
    let Some(file) = file else {
        opened.session.get(name, &mut io::stdout().lock())?;
        return Ok(());
    };
    let new = NewFile::create(file)?;
    let bytes = opened.session.get(name, &mut new.file())?;
    new.publish()?;
    answer.tell(
        &json!({ "name": name, "bytes": bytes }),
        format_args!("wrote '{}', {}", name.escape_debug(), Size(bytes)),
    )
}

/// Gives a stream another name.
pub(super) fn rename(store: &Url, name: &str, new_name: &str) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    Ok(opened.session.rename(What::Put, name, new_name)?)
}

/// Removes streams, and frees what only they hold, as far as workers have not done it.
pub(super) fn remove(store: &Url, names: &[String], answer: Answer) -> Result<(), Failure> {
    let opened = Opened::open(store, Settings::default())?;
    for name in names {
        opened.session.delete(name, What::Put)?;
        if !answer.json {
            output::line(format_args!("removed '{}'", name.escape_debug()));
        }
    }
    while opened.session.delete_step()? {}
    if answer.json { output::json(&json!({ "removed": names })) } else { Ok(()) }
}

/// Finishes what is being deleted, here or by sessions that ended; how many steps it took.
pub(super) fn finish_deletions(store: &Url) -> Result<u64, Failure> {
    let opened = Opened::open(store, Settings::default())?;
    let mut steps = 0;
    while opened.session.delete_step()? {
        steps += 1;
    }
    Ok(steps)
}
