package sessiontest

import (
	"bytes"
	"net/http"
	"os"
	"reflect"
	"testing"
)

// TestWrite reads what it has written, with bodies that are no text.
func TestWrite(t *testing.T) {
	want := []*Exchange{
		{Method: "POST", Host: "a.example.com", Path: "/v1?x=1", Header: http.Header{"A": {"1", "2"}}, Body: Text(`{"a":"<é>"}`), Status: 200, AnswerHeader: http.Header{}, Answer: Text("data: 1\n\n")},
		{Method: "POST", Header: http.Header{}, AnswerHeader: http.Header{}, Body: Text("\x28\xb5\x2f\xfd\xff"), Status: 400},
		{Method: "GET", Header: http.Header{}, AnswerHeader: http.Header{}, Messages: []Message{{Text: Text("?")}, {FromServer: true, Text: Text("\xff")}}},
	}
	dir := t.TempDir()
	n, err := Write(dir, Session{Name: "an agent", Exchanges: want})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(dir + "/an agent" + suffix)
	if err != nil || len(b) != n {
		t.Fatalf("%d bytes of %d: %v", len(b), n, err)
	}
	got, err := decode(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v: %v", got, err)
	}
	if got, err := decode(b[:len(b)/2]); err == nil {
		t.Errorf("half of it reads as %d exchanges", len(got))
	}
}

// TestSize: a recording is small enough for a repository.
func TestSize(t *testing.T) {
	entries, err := files.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Size() > 300<<10 {
			t.Errorf("%s: %v, %v", e.Name(), info.Size(), err)
		}
	}
}

// TestWithoutWords: the recording of a closed agent has none of its texts.
func TestWithoutWords(t *testing.T) {
	const text = `{"system":[{"text":"You are an agent: be careful with <secrets>, and never \"guess\"."}],"messages":[{"content":"Fix the function"}]}`
	const want = `{"system":[{"text":"lor lor lo lorem: lo loremip lore <loremip>, lor lorem \"lorem\"."}],"messages":[{"content":"Fix the function"}]}`
	if got := string(withoutWords([]byte(text))); got != want {
		t.Errorf("%s", got)
	}
	for _, s := range All(t) {
		if !closed[s.Name] {
			continue
		}
		for i, x := range s.Exchanges {
			if !bytes.Equal(withoutWords(x.Body), x.Body) {
				t.Errorf("%s, request %d: has words", s.Name, i)
			}
		}
	}
}
