//! Just enough of Rust's lexical rules to see what is code and what is a comment or a literal.
//!
//! A parser would be exact and would be the largest dependency of this program. What is needed is only
//! that a keyword in prose isn't taken for code, and that code can't hide from the search.

use std::collections::HashSet;

const ITEMS: &[&str] =
    &["const", "enum", "fn", "macro_rules", "mod", "static", "struct", "trait", "type", "union"];

/// The lines, counted from 1, on which the keyword `unsafe` stands. In code it has no other meaning, so
/// blocks, functions, traits, impls, extern blocks and `#[unsafe(…)]` need not be told apart.
pub(crate) fn unsafe_lines(source: &str) -> Vec<usize> {
    let code = code_only(source);
    let mut lines = Vec::new();
    for (number, line) in code.lines().enumerate() {
        if words(line).any(|word| word == "unsafe") {
            lines.push(number + 1);
        }
    }
    lines
}

/// The names of everything in a source file that a test can be, or be the documentation of.
pub(crate) fn item_names(source: &str) -> HashSet<String> {
    let code = code_only(source);
    let words: Vec<&str> = words(&code).collect();
    words.windows(2).filter(|pair| ITEMS.contains(&pair[0])).map(|pair| pair[1].to_owned()).collect()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')).filter(|word| !word.is_empty())
}

/// The source with comments and literals blanked out; lines stay where they are.
fn code_only(source: &str) -> String {
    let text: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < text.len() {
        let end = literal_or_comment_end(&text, at);
        if end > at {
            // A space keeps the words on both sides apart.
            code.push(' ');
            code.extend(text[at..end].iter().filter(|letter| **letter == '\n'));
            at = end;
        } else {
            code.push(text[at]);
            at += 1;
        }
    }
    code
}

/// Where the comment or literal that starts at `at` ends; `at` itself if none starts there.
fn literal_or_comment_end(text: &[char], at: usize) -> usize {
    let next = text.get(at + 1).copied();
    match text[at] {
        '/' if next == Some('/') => line_end(text, at),
        '/' if next == Some('*') => block_comment_end(text, at),
        '"' => string_end(text, at + 1),
        '\'' => character_end(text, at),
        // `r"…"`, `r#"…"#`, and after `b` or `c`; but not the last letter of a name, and not `r#name`.
        'r' if !ends_a_name(text, at) => raw_string_end(text, at),
        _ => at,
    }
}

fn line_end(text: &[char], at: usize) -> usize {
    text[at..].iter().position(|letter| *letter == '\n').map_or(text.len(), |length| at + length)
}

fn block_comment_end(text: &[char], at: usize) -> usize {
    let mut depth = 0usize;
    let mut here = at;
    while here < text.len() {
        match (text[here], text.get(here + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                here += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                here += 2;
                if depth == 0 {
                    return here;
                }
            }
            _ => here += 1,
        }
    }
    text.len()
}

fn string_end(text: &[char], start: usize) -> usize {
    let mut here = start;
    while here < text.len() {
        match text[here] {
            '\\' => here += 2,
            '"' => return here + 1,
            _ => here += 1,
        }
    }
    text.len()
}

/// `'x'` and `'\n'` are literals; `'a` is a lifetime and is left as code.
fn character_end(text: &[char], at: usize) -> usize {
    match text.get(at + 1) {
        Some('\\') => {
            // The letter after the backslash may be a quote itself.
            let closing = text.iter().skip(at + 3).position(|letter| *letter == '\'');
            closing.map_or(text.len(), |length| at + 3 + length + 1)
        }
        Some(_) if text.get(at + 2) == Some(&'\'') => at + 3,
        _ => at,
    }
}

fn raw_string_end(text: &[char], at: usize) -> usize {
    let hashes = text[at + 1..].iter().take_while(|letter| **letter == '#').count();
    if text.get(at + 1 + hashes) != Some(&'"') {
        // A raw name such as `r#fn` is no keyword: it is blanked like a literal.
        let name = text[at + 1..].iter().skip(hashes).take_while(|letter| is_name(**letter)).count();
        return if hashes == 1 { at + 2 + name } else { at };
    }
    let body = at + 2 + hashes;
    let closing = (body..text.len()).find(|here| {
        text[*here] == '"'
            && text[here + 1..].iter().take(hashes).filter(|letter| **letter == '#').count() == hashes
    });
    closing.map_or(text.len(), |quote| quote + 1 + hashes)
}

fn ends_a_name(text: &[char], at: usize) -> bool {
    let prefix = text[..at].iter().rev().take_while(|letter| is_name(**letter)).collect::<Vec<_>>();
    !matches!(prefix.as_slice(), [] | ['b' | 'c'])
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_keyword_is_found() {
        let forms = [
            "unsafe { f() }",
            "unsafe fn f() {}",
            "pub unsafe trait T {}",
            "unsafe impl T for U {}",
            "unsafe extern \"C\" {}",
            "#[unsafe(no_mangle)] fn f() {}",
            "let x = unsafe{f()};",
            "let c = 'a'; unsafe { f(\"'\") }",
            "fn f<'a>(x: &'a str) { unsafe { g(x) } }",
            "r\"\\\"; unsafe {}",
        ];
        for form in forms {
            assert_eq!(unsafe_lines(form), [1], "{form}");
        }
    }

    #[test]
    fn the_word_in_comments_and_literals_is_not_code() {
        let prose = [
            "// unsafe { f() }",
            "/// unsafe fn",
            "/* a /* nested */ unsafe { } */",
            "let s = \"unsafe { }\";",
            "let s = \"\\\" unsafe { }\";",
            "let s = r#\"a \" unsafe { }\"#;",
            "let s = br\"unsafe { }\";",
            "let c = '\"'; // unsafe",
            "let c = '\\''; let s = \"unsafe\";",
            "#![forbid(unsafe_code)]",
            "#![deny(unsafe_op_in_unsafe_fn)]",
            "let r#unsafe = 1;",
        ];
        for text in prose {
            assert!(unsafe_lines(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn lines_are_counted_across_literals_and_comments() {
        assert_eq!(unsafe_lines("/* 1\n2 */\nlet s = \"3\n4\";\nunsafe {}\n"), [5]);
        assert_eq!(unsafe_lines("let s = r#\"1\n\"2\n\"#; unsafe {}\n"), [3]);
    }

    #[test]
    fn names_of_items_are_found_where_they_are_written() {
        let names = item_names("fn one() {}\npub async fn two<T>() {}\n// fn three()\npub struct Four;\n");
        assert!(["one", "two", "Four"].iter().all(|name| names.contains(*name)));
        assert!(!names.contains("three"));
    }
}
