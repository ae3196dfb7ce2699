package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
)

// Bounds of a list.
const (
	maxPages = 100      // requests
	maxPage  = 8 << 20  // bytes of a page; one of more is asked for in smaller parts
	maxLarge = 16       // answers that were too large
	maxText  = 16 << 20 // bytes of the comments in one answer of [Client.Comments]
)

// left says what a walk did not show.
type left struct {
	large int  // entries that are too large by themselves
	rest  bool // the list goes on, but the walk's bounds are reached
}

// sizes are the sizes of pages, besides the largest of a forge: each divides the next, so
// that a smaller page begins where a larger one did.
var sizes = [...]int{1, 5, 25, 50, 100}

// walker holds the position of a walk through a list.
type walker struct {
	at   int // how many entries there are before the next page
	size int // of the next page
	most int // the largest size
}

// shrink chooses smaller pages.
func (w *walker) shrink() {
	next := 1
	for _, s := range sizes {
		if s < w.size && w.at%s == 0 {
			next = s
		}
	}
	w.size = next
}

// grow chooses larger pages, if one begins here.
func (w *walker) grow() {
	for _, s := range sizes {
		if s > w.size && s <= w.most && w.at%s == 0 {
			w.size = s
			return
		}
	}
}

// walk reads a list page by page and calls each for its entries, until that returns false.
// What strangers write does not stop it: a page that is too large is read in smaller ones,
// and an entry that is too large is left out. id tells entries apart: between two pages a
// list may grow, and a forge without pages returns the same list again.
//
// Of a sparse list the pages may be empty or short although more follow. There, sparse reports
// whether the end is reached, by the entries that were left out and the pages in a row that
// were empty. For other lists it is nil.
func walk[T any](ctx context.Context, c *Client, path string, q url.Values, sparse func(large, empty int) bool, id func(T) int64, each func(T) bool) (left, error) {
	if q == nil {
		q = url.Values{}
	}
	param, most := c.vendor.page()
	requests := maxPages
	if sparse != nil {
		// No header tells whether the forge makes its pages smaller than asked for: these are
		// small enough for any.
		most, requests = min(most, 25), 10*maxPages
	}
	w, out, seen, tooLarge, empty := walker{size: most, most: most}, left{}, map[int64]bool{}, 0, 0
	for range requests {
		q.Set(param, strconv.Itoa(w.size))
		q.Set("page", strconv.Itoa(w.at/w.size+1))
		var part []T
		h, err := c.do(ctx, request{method: http.MethodGet, path: path + "?" + q.Encode(), into: &part, again: true, most: c.pageSize})
		if errors.As(err, new(tooLargeError)) {
			if tooLarge++; tooLarge == maxLarge {
				if len(seen) == 0 {
					return out, err
				}
				out.rest = true
				return out, nil
			}
			if w.size == 1 {
				out.large++
				w.at++
			}
			w.shrink()
			continue
		}
		if err != nil {
			return out, err
		}
		fresh := false
		for _, x := range part {
			n := id(x)
			if n <= 0 {
				return out, c.noID(path)
			}
			if seen[n] {
				continue
			}
			seen[n], fresh = true, true
			if !each(x) {
				return out, nil
			}
		}
		switch {
		case sparse != nil:
			if empty++; len(part) > 0 {
				empty = 0
			}
			if sparse(out.large, empty) {
				return out, nil
			}
			w.at += w.size
		case ended(h, len(part), len(seen), fresh):
			return out, nil
		default:
			w.at += len(part)
			if len(part) < w.size { // a forge may make its pages smaller than asked for
				w.size, w.most = len(part), len(part)
			}
		}
		w.grow()
	}
	out.rest = true
	return out, nil
}

// ended reports whether a page of a list was its last one.
func ended(h http.Header, got, seen int, fresh bool) bool {
	link := strings.Join(h.Values("Link"), ",")
	total, err := strconv.Atoi(h.Get("X-Total-Count"))
	switch {
	case got == 0:
		return true
	case link != "":
		return !strings.Contains(link, `rel="next"`)
	case err == nil:
		return seen >= total
	}
	return !fresh
}

func (c *Client) noID(path string) error {
	return fmt.Errorf("%s: GET %s: the forge lists something without an id", c.provider, safetext.String(path, 300))
}

// list reads the whole of a list, or fails.
func list[T any](ctx context.Context, c *Client, path string, q url.Values, id func(T) int64) ([]T, error) {
	var out []T
	l, err := walk(ctx, c, path, q, nil, id, func(x T) bool {
		out = append(out, x)
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case l.large > 0:
		return nil, fmt.Errorf("%s: GET %s: the forge lists something of more than %d bytes", c.provider, safetext.String(path, 300), c.pageSize)
	case l.rest:
		return nil, fmt.Errorf("%s: GET %s: the forge lists more than %d pages", c.provider, safetext.String(path, 300), maxPages)
	}
	return out, nil
}
