package forge

// SetBounds makes a page's bound smaller, in bytes, and that of all comments twice that.
func (c *Client) SetBounds(page int) { c.pageSize, c.textSize = page, 2*page }
