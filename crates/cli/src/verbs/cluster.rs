//! Verbs on a store of the cluster engine: streams, which are its objects.
//!
//! A folder is owned by one process at a time: while it is served, verbs say so. On Ceph everybody
//! may come at any time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    path::Path,
};

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
    objects: impl Iterator<Item = ObjectId> + Clone,
) -> Vec<String> {
    let names = named_as(session, objects.clone().map(|object| object.volume).collect());
    let title = |object: ObjectId| match names.get(&object.volume) {
        Some((name, What::Volume)) => {
            format!("object {object} of volume '{}'", name.escape_debug())
        }
        Some((name, What::Put)) => format!("object {object} of stream '{}'", name.escape_debug()),
        None => format!("object {object}"),
    };
    objects.map(title).collect()
}

/// The names of volumes and streams with these numbers, as far as they can be read.
fn named_as(session: &Session, numbers: BTreeSet<u64>) -> BTreeMap<u64, (String, What)> {
    let (mut found, mut after) = (BTreeMap::new(), String::new());
    while found.len() < numbers.len() {
        let Ok(page) = session.names_after(None, &after) else { break };
        let some = page.names.into_iter().filter(|(_, named)| numbers.contains(&named.id));
        found.extend(some.map(|(name, named)| (named.id, (name, named.what))));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    found
}

/// Lists what has a name: volumes or streams, page by page.
pub(crate) fn list(store: &Url, what: What, answer: Answer) -> Result<(), Failure> {
    let session = Opened::look(store)?.session;
    let mut array = answer.json.then(output::Array::default);
    let (mut after, mut any) = (String::new(), false);
    loop {
        let page = session.names_after(Some(what), &after)?;
        for (name, named) in &page.names {
            any = true;
            match &mut array {
                Some(array) => array.add(&json!({ "name": name, "bytes": named.bytes }))?,
                None => output::line(format_args!(
                    "{:>9}  {}",
                    Size(named.bytes).to_string(),
                    name.escape_debug()
                )),
            }
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    match array {
        Some(array) => array.end(),
        None if !any => {
            output::line(if what == What::Volume { "no volumes" } else { "no streams" })
        }
        None => {}
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
