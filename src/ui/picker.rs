//! The lists of a webhook's filter: the values that the account's events have as checkboxes with
//! names, narrowed down by a search, and a field for all others.

use super::fields::Fields;
use super::settings::{LISTS, items};
use crate::manage::FilterValue;

/// Checkboxes of one list. Chosen values come first; what does not fit is in the field. Keeps the form
/// below the limits on its size and on the number of its fields.
const MOST: usize = 50;

/// The form of one list.
pub struct Picker<'a> {
    /// The name of the fields.
    pub list: &'static str,
    pub label: &'static str,
    pub choices: Vec<Choice<'a>>,
    /// How many values match the search but are not shown.
    pub more: usize,
    /// The chosen values that have no checkbox.
    pub others: String,
}

pub struct Choice<'a> {
    pub value: &'a str,
    pub name: Option<&'a str>,
    pub release: Option<&'a str>,
    pub is_chosen: bool,
}

/// Returns a picker for each list, with the values that match the form's search or are chosen.
pub fn pickers<'a>(form: &Fields, known: &'a [FilterValue]) -> Vec<Picker<'a>> {
    let search = form.one("find").trim().to_lowercase();
    let lists = LISTS.iter();
    lists
        .map(|(list, label)| picker(list, label, form, known, &search))
        .collect()
}

fn picker<'a>(
    list: &'static str,
    label: &'static str,
    form: &Fields,
    known: &'a [FilterValue],
    search: &str,
) -> Picker<'a> {
    let chosen: Vec<&str> = form.all(list).flat_map(items).collect();
    let choice = |known: &'a FilterValue| Choice {
        value: &known.value,
        name: known.name.as_deref(),
        release: known.release.as_deref(),
        is_chosen: chosen.contains(&known.value.as_str()),
    };
    let matches = |choice: &Choice<'_>| {
        let is_in = |text: &str| text.to_lowercase().contains(search);
        let mut texts = [Some(choice.value), choice.name, choice.release].into_iter();
        choice.is_chosen || texts.any(|text| text.is_some_and(is_in))
    };

    let known = known.iter().filter(|known| known.list == list).map(choice);
    let mut choices: Vec<Choice<'_>> = known.filter(matches).collect();
    choices.sort_by_key(|choice| !choice.is_chosen);

    let more = choices.len().saturating_sub(MOST);
    choices.truncate(MOST);
    let is_shown = |value: &&str| choices.iter().any(|choice| choice.value == *value);
    let others: Vec<&str> = chosen
        .iter()
        .copied()
        .filter(|value| !is_shown(value))
        .collect();

    Picker {
        list,
        label,
        more,
        others: others.join(", "),
        choices,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(list: &str, value: impl ToString, name: &str) -> FilterValue {
        FilterValue {
            list: list.to_owned(),
            value: value.to_string(),
            name: Some(name.to_owned()),
            release: None,
        }
    }

    fn shown(form: &[(&str, &str)], known: &[FilterValue]) -> (Vec<String>, usize, String) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let form = Fields::from(form.iter().map(owned).collect::<Vec<_>>());
        let picker = pickers(&form, known).swap_remove(1);
        let mark = |choice: &Choice<'_>| match choice.is_chosen {
            true => format!("[{}]", choice.value),
            false => choice.value.to_owned(),
        };

        let choices = picker.choices.iter().map(mark).collect();
        (choices, picker.more, picker.others)
    }

    #[test]
    fn a_search_keeps_what_is_chosen_and_what_it_finds() {
        let outlets = [
            known("outlet_ids", 1, "Alpha"),
            known("outlet_ids", 2, "Beta"),
            known("outlet_ids", 3, "Gamma"),
            known("label_ids", 9, "Beta"),
        ];

        let form = [
            ("find", " bet "),
            ("outlet_ids", "3"),
            ("outlet_ids", "7, x"),
        ];
        let expected = (vec!["[3]".into(), "2".into()], 0, "7, x".into());
        assert_eq!(shown(&form, &outlets), expected);
    }

    #[test]
    fn what_does_not_fit_stays_chosen() {
        let outlets: Vec<FilterValue> = (1..=80)
            .map(|id| known("outlet_ids", id, "Outlet"))
            .collect();
        let chosen: Vec<String> = (21..=80).map(|id| id.to_string()).collect();

        let (choices, more, others) = shown(&[("outlet_ids", &chosen.join(","))], &outlets);
        assert_eq!((choices.len(), more), (MOST, 30));
        assert_eq!(others, chosen[MOST..].join(", "));
    }
}
