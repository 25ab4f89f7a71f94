// Prints Kubernetes objects as a JSON array: those of a manifest, or those that a chart renders with its values. The chart's notes
// follow them, as an object of the kind Notes.
//
//	render MANIFEST.yaml
//	render CHART-DIRECTORY [VALUES.yaml]
//
// A chart's templates are Go's, with the functions of sprig and some of Helm. Helm itself is not a Debian package.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type object = map[string]interface{}

// files are those of a chart's directory.
type files struct{ chart string }

// Get returns the content of a file, or nothing if there is no such file, as Helm does.
func (all files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(all.chart, name))
	if err != nil {
		return ""
	}
	return string(text)
}

func main() {
	text, err := objects(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	found := []json.RawMessage{}
	for _, document := range strings.Split("\n"+text, "\n---") {
		converted, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			fmt.Fprintf(os.Stderr, "%v in:\n%s\n", err, document)
			os.Exit(1)
		}
		if string(converted) != "null" {
			found = append(found, converted)
		}
	}
	json.NewEncoder(os.Stdout).Encode(found)
}

func objects(arguments []string) (string, error) {
	if len(arguments) == 0 {
		return "", errors.New("a manifest or a chart is expected")
	}
	if filepath.Ext(arguments[0]) != "" {
		text, err := os.ReadFile(arguments[0])
		return string(text), err
	}
	return render(arguments[0], arguments[1:])
}

func read(path string) (object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	found := object{}
	return found, yaml.Unmarshal(text, &found)
}

func render(chart string, overrides []string) (string, error) {
	values, err := read(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return "", err
	}
	for _, path := range overrides {
		override, err := read(path)
		if err != nil {
			return "", err
		}
		merge(values, override)
	}
	metadata, err := read(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		return "", err
	}
	base := metadata["name"].(string) + "/templates"
	scope := object{
		"Values":   values,
		"Release":  object{"Name": "walhook", "Namespace": "default", "Service": "Helm"},
		"Chart":    object{"Name": metadata["name"], "Version": metadata["version"], "AppVersion": metadata["appVersion"]},
		"Template": object{"BasePath": base},
		"Files":    files{chart},
	}
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(functions(all))
	templates, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	if err != nil {
		return "", err
	}
	for _, file := range templates {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		if _, err := all.New(base + "/" + filepath.Base(file)).Parse(string(text)); err != nil {
			return "", err
		}
	}
	var made bytes.Buffer
	for _, file := range templates {
		if strings.HasSuffix(file, ".yaml") {
			made.WriteString("\n---\n")
			if err := all.ExecuteTemplate(&made, base+"/"+filepath.Base(file), scope); err != nil {
				return "", err
			}
		}
	}
	var notes bytes.Buffer
	if err := all.ExecuteTemplate(&notes, base+"/NOTES.txt", scope); err != nil {
		return "", err
	}
	text, err := json.Marshal(object{"kind": "Notes", "text": notes.String()})
	if err != nil {
		return "", err
	}
	made.WriteString("\n---\n")
	made.Write(text)
	// As Helm does with missing values.
	return strings.ReplaceAll(made.String(), "<no value>", ""), nil
}

// merge overrides values; null removes a value.
func merge(values, override object) {
	for key, value := range override {
		inner, isObject := value.(object)
		known, wasObject := values[key].(object)
		switch {
		case value == nil:
			delete(values, key)
		case isObject && wasObject:
			merge(known, inner)
		default:
			values[key] = value
		}
	}
}

func functions(all *template.Template) template.FuncMap {
	helpers := sprig.TxtFuncMap()
	helpers["include"] = func(name string, scope interface{}) (string, error) {
		var made bytes.Buffer
		err := all.ExecuteTemplate(&made, name, scope)
		return made.String(), err
	}
	helpers["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	helpers["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	helpers["fromYamlArray"] = func(text string) ([]interface{}, error) {
		found := []interface{}{}
		return found, yaml.Unmarshal([]byte(text), &found)
	}
	return helpers
}
