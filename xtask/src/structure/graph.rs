//! Which file imports which, and the circles in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::files::{Crate, Module, Names};

/// Re-exports that lead to one another, at most.
const DEPTH: usize = 16;

/// Files that import each other, directly or by others; each circle in the order of names.
pub(super) fn circles(one: &Crate) -> Vec<Vec<PathBuf>> {
    let imports = imports(one);
    let reach: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        imports.keys().map(|file| (file, reached(&imports, file))).collect();
    let mut circles: Vec<Vec<PathBuf>> = Vec::new();
    let mut done = BTreeSet::new();
    for (file, to) in &reach {
        if !to.contains(file) || done.contains(file) {
            continue;
        }
        let circle: Vec<&PathBuf> = to
            .iter()
            .copied()
            .filter(|other| reach.get(other).is_some_and(|back| back.contains(file)))
            .collect();
        done.extend(circle.iter().copied());
        circles.push(circle.into_iter().cloned().collect());
    }
    circles
}

fn reached<'a>(
    imports: &'a BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    file: &PathBuf,
) -> BTreeSet<&'a PathBuf> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&PathBuf> = imports.get(file).into_iter().flatten().collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(imports.get(file).into_iter().flatten());
        }
    }
    found
}

/// The files that each file imports.
pub(super) fn imports(one: &Crate) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
    let mut imports: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
    for (name, module) in &one.modules {
        let to = imports.entry(module.file.clone()).or_default();
        let found = module
            .paths
            .iter()
            .filter_map(|path| target(one, name, path, DEPTH))
            .map(|module| module.file.clone());
        to.extend(found.filter(|file| *file != module.file));
    }
    imports
}

/// The module that a path in a module leads into; `None` for paths into other crates.
fn target<'a>(one: &'a Crate, from: &Names, path: &[String], depth: usize) -> Option<&'a Module> {
    let (first, rest) = path.split_first()?;
    let depth = depth.checked_sub(1)?;
    match first.as_str() {
        "crate" => walk(one, Names::new(), rest, depth),
        "self" => walk(one, from.clone(), rest, depth),
        "super" => walk(one, from[..from.len().checked_sub(1)?].to_vec(), rest, depth),
        _ if one.modules.contains_key(&below(from, first)) && !rest.is_empty() => {
            walk(one, below(from, first), rest, depth)
        }
        // A name of this module: what it stands for was seen where it was taken over.
        _ => None,
    }
}

fn below(module: &[String], name: &str) -> Names {
    [module, &[name.to_owned()]].concat()
}

/// Goes on from a module by the rest of a path.
fn walk<'a>(one: &'a Crate, at: Names, rest: &[String], depth: usize) -> Option<&'a Module> {
    let module = one.modules.get(&at)?;
    let Some((first, further)) = rest.split_first() else { return Some(module) };
    if first == "super" {
        return walk(one, at[..at.len().checked_sub(1)?].to_vec(), further, depth);
    }
    if one.modules.contains_key(&below(&at, first)) {
        return walk(one, below(&at, first), further, depth);
    }
    let Some(means) = module.names.get(first) else { return Some(module) };
    let path = [&means[..], further].concat();
    target(one, &at, &path, depth).or(Some(module))
}
