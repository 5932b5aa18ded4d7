//! A crate as its files have it: modules, methods, and the lines that are no tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use syn::{Item, UseTree, Visibility, visit::Visit};

/// A path in a crate: the names of its modules, and what is meant in the last one.
pub(super) type Names = Vec<String>;

/// A method, or a function of a type.
pub(super) struct Method {
    /// The type's name.
    pub(super) of: String,
    /// Where it stands.
    pub(super) file: PathBuf,
}

/// One module: its own file, or a part of one.
#[derive(Default)]
pub(super) struct Module {
    /// The file, from the crate's `src`.
    pub(super) file: PathBuf,
    /// Names that the module took over by `use`: what each means, and whether others may use it.
    pub(super) names: BTreeMap<String, Names>,
    /// Paths in its code that begin in this crate.
    pub(super) paths: Vec<Names>,
}

/// All of a crate.
#[derive(Default)]
pub(super) struct Crate {
    /// Its folder's name.
    pub(super) name: String,
    /// Its modules by path; the root's is empty.
    pub(super) modules: BTreeMap<Names, Module>,
    /// Methods of all its types.
    pub(super) methods: Vec<Method>,
    /// Modules that other crates may enter.
    pub(super) public_modules: usize,
    /// Fields that are `pub(crate)`.
    pub(super) open_fields: usize,
    /// Code blocks in documentation that are run.
    pub(super) examples: usize,
    /// Lines of code by file: without tests, cut at both ends.
    text: BTreeMap<PathBuf, Vec<(usize, String)>>,
}

impl Crate {
    pub(super) fn read(name: &str, source: &Path) -> Result<Crate> {
        let mut read = Crate { name: name.to_owned(), ..Crate::default() };
        let root =
            ["lib.rs", "main.rs"].iter().map(|file| source.join(file)).find(|file| file.is_file());
        let root = root.with_context(|| format!("{} has no root", source.display()))?;
        read.file(source, &root, Names::new())?;
        Ok(read)
    }

    /// Lines that are wanted, of files that are wanted, with where they stand.
    pub(super) fn lines(
        &self,
        wanted: impl Fn(&str) -> bool,
        file: impl Fn(&Path) -> bool,
    ) -> Vec<String> {
        let of = |(path, lines): (&PathBuf, &Vec<(usize, String)>)| {
            let lines = lines.iter().filter(|(_, line)| wanted(line.trim_end()));
            lines
                .map(|(number, line)| format!("{}:{number}: {}", path.display(), line.trim()))
                .collect::<Vec<_>>()
        };
        self.text.iter().filter(|(path, _)| file(path)).flat_map(of).collect()
    }

    fn file(&mut self, source: &Path, path: &Path, module: Names) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let syntax = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        let own = path.strip_prefix(source)?.to_owned();
        let end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
        let lines = text[..end].lines().enumerate().map(|(n, line)| (n + 1, line.to_owned()));
        self.text.insert(own.clone(), lines.collect());
        self.examples += text
            .lines()
            .filter(|line| {
                matches!(line.trim(), "/// ```" | "//! ```" | "/// ```no_run" | "//! ```no_run")
            })
            .count()
            / 2;
        let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("lib" | "main" | "mod") => path.parent().unwrap_or(source).to_owned(),
            _ => path.with_extension(""),
        };
        self.items(source, &own, &folder, module, &syntax.items)
    }

    fn items(
        &mut self,
        source: &Path,
        own: &Path,
        folder: &Path,
        module: Names,
        items: &[Item],
    ) -> Result<()> {
        let mut here = Module { file: own.to_owned(), ..Module::default() };
        let mut inside = Vec::new();
        for item in items.iter().filter(|item| !is_test(item)) {
            match item {
                Item::Mod(child) => {
                    let mut below = module.clone();
                    below.push(child.ident.to_string());
                    self.public_modules += usize::from(matches!(child.vis, Visibility::Public(_)));
                    inside.push((below, child));
                }
                Item::Use(taken) => {
                    let gives = !matches!(taken.vis, Visibility::Inherited);
                    let mut all = Vec::new();
                    taken_over(&taken.tree, &mut Names::new(), &mut all);
                    for (name, path) in all {
                        if !gives {
                            here.paths.push(path.clone());
                        }
                        here.names.insert(name, path);
                    }
                }
                other => {
                    let mut paths = Paths(&mut here.paths);
                    paths.visit_item(other);
                    self.count(own, other);
                }
            }
        }
        self.modules.insert(module, here);
        for (below, child) in inside {
            let name = child.ident.to_string();
            if let Some((_, items)) = &child.content {
                self.items(source, own, &folder.join(&name), below, items)?;
                continue;
            }
            let places = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            if let Some(file) = places.iter().find(|file| file.is_file()) {
                self.file(source, file, below)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, file: &Path, item: &Item) {
        let opens = |field: &&syn::Field| match &field.vis {
            Visibility::Restricted(to) => to.path.is_ident("crate"),
            _ => false,
        };
        match item {
            Item::Struct(found) => self.open_fields += found.fields.iter().filter(opens).count(),
            Item::Impl(found) => {
                let syn::Type::Path(of) = &*found.self_ty else { return };
                let Some(of) = of.path.segments.last().map(|name| name.ident.to_string()) else {
                    return;
                };
                let functions =
                    found.items.iter().filter(|item| matches!(item, syn::ImplItem::Fn(_))).count();
                self.methods.extend(
                    (0..functions).map(|_| Method { of: of.clone(), file: file.to_owned() }),
                );
            }
            _ => {}
        }
    }
}

/// True for what is built for tests alone.
fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Mod(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        _ => return false,
    };
    let test = |attribute: &syn::Attribute| {
        let listed = attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg") && listed.is_ok_and(|what| what == "test")
    };
    attributes.iter().any(test)
}

/// The names that a `use` gives, each with its path. A glob gives what has no name here.
fn taken_over(tree: &UseTree, before: &mut Names, all: &mut Vec<(String, Names)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            taken_over(&path.tree, before, all);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            all.push((before.last().cloned().unwrap_or_default(), before.clone()));
        }
        UseTree::Name(name) => {
            all.push((name.ident.to_string(), [&before[..], &[name.ident.to_string()]].concat()))
        }
        UseTree::Rename(name) => {
            all.push((name.rename.to_string(), [&before[..], &[name.ident.to_string()]].concat()))
        }
        UseTree::Glob(_) => all.push((format!("* of {}", before.join("::")), before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| taken_over(tree, before, all)),
    }
}

/// Gathers the paths in code.
struct Paths<'a>(&'a mut Vec<Names>);

impl<'ast> Visit<'ast> for Paths<'_> {
    /// `pub(super)` says who may use a thing, and needs nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}
