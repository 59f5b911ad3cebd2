/* The layout of a schema's record batches in IPC messages: the buffers of each field. */
#include <stdlib.h>
#include <string.h>

#include "ipc.h"

/* --- format strings of the C data interface ----------------------------------------- */

static const struct {
	const char *prefix; /* beginning of the format; the first match counts, so longer prefixes come first */
	enum ipc_values values;
	uint32_t width; /* `width` of the field; 0 if the format has the width as a number behind the prefix */
} formats[] = {
    /* CHANGE: edit this for a new type between Spark and Arrow */
    {"n", VALUES_NONE, 1},         {"b", VALUES_BITS, 1},    {"c", VALUES_FIXED, 1},   {"C", VALUES_FIXED, 1},
    {"s", VALUES_FIXED, 2},        {"S", VALUES_FIXED, 2},   {"e", VALUES_FIXED, 2},   {"i", VALUES_FIXED, 4},
    {"I", VALUES_FIXED, 4},        {"f", VALUES_FIXED, 4},   {"l", VALUES_FIXED, 8},   {"L", VALUES_FIXED, 8},
    {"g", VALUES_FIXED, 8},        {"z", VALUES_BYTES, 4},   {"u", VALUES_BYTES, 4},   {"Z", VALUES_BYTES, 8},
    {"U", VALUES_BYTES, 8},        {"tdD", VALUES_FIXED, 4}, {"tdm", VALUES_FIXED, 8}, {"tts", VALUES_FIXED, 4},
    {"ttm", VALUES_FIXED, 4},      {"ttu", VALUES_FIXED, 8}, {"ttn", VALUES_FIXED, 8}, {"ts", VALUES_FIXED, 8},
    {"tD", VALUES_FIXED, 8},       {"tiM", VALUES_FIXED, 4}, {"tiD", VALUES_FIXED, 8}, {"tin", VALUES_FIXED, 16},
    {"w:", VALUES_FIXED, 0},       {"+l", VALUES_LIST, 4},   {"+m", VALUES_LIST, 4},   {"+L", VALUES_LIST, 8},
    {"+w:", VALUES_FIXED_LIST, 0}, {"+s", VALUES_STRUCT, 1},
};

/* Stores in *width the size in bytes of one value of a decimal type. Its format is "d:precision,scale[,bits]"; a
 * value has 16 bytes if the format has no bits. Returns false if the format has no scale. */
static bool decimal_width(const char *format, uint32_t *width)
{
	const char *comma = strchr(format, ',');
	const char *bits = comma ? strchr(comma + 1, ',') : NULL;

	*width = bits ? (uint32_t)strtoul(bits + 1, NULL, 10) / 8 : 16;
	return comma != NULL;
}

static bool parse_format(struct ipc_field *field)
{
	const char *format = field->schema->format;

	if (format[0] == 'd') {
		field->values = VALUES_FIXED;
		return decimal_width(format, &field->width);
	}
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
		size_t length = strlen(formats[i].prefix);

		/* A prefix of one letter has to be the whole format; a longer prefix may have parameters. */
		if (strncmp(format, formats[i].prefix, length) != 0 || (length == 1 && format[1]))
			continue;
		field->values = formats[i].values;
		field->width = formats[i].width ? formats[i].width : (uint32_t)strtoul(format + length, NULL, 10);
		return true;
	}
	return false; /* views, unions, run-end encoded arrays, and types not known yet */
}

/* Returns true if `schema` can be the child of a map: readers expect a key and a value there, without a check. */
static bool is_pair(const struct ArrowSchema *schema)
{
	return strcmp(schema->format, "+s") == 0 && schema->n_children == 2;
}

static bool children_fit(const struct ipc_field *field)
{
	const struct ArrowSchema *schema = field->schema;

	switch (field->values) {
	case VALUES_STRUCT:
		return true;
	case VALUES_LIST:
	case VALUES_FIXED_LIST:
		return schema->n_children == 1 &&
		       (strcmp(schema->format, "+m") != 0 || is_pair(schema->children[0]));
	default:
		return schema->n_children == 0;
	}
}

static uint32_t buffers_of(enum ipc_values values)
{
	switch (values) {
	case VALUES_NONE:
		return 0;
	case VALUES_STRUCT:
	case VALUES_FIXED_LIST:
		return 1;
	case VALUES_BYTES:
		return 3;
	default:
		return 2;
	}
}

/* --- the fields of a schema ---------------------------------------------------------- */

static uint32_t count_fields(const struct ArrowSchema *schema, int levels)
{
	uint32_t count = 1;

	for (int64_t i = 0; levels && i < schema->n_children; i++)
		count += count_fields(schema->children[i], levels - 1);
	return count;
}

static bool add_fields(struct ipc_layout *self, const struct ArrowSchema *schema, int levels)
{
	struct ipc_field *field = &self->fields[self->field_count++];

	field->schema = schema;
	if (levels == 0 || schema->dictionary || !parse_format(field) || !children_fit(field))
		return false;
	field->buffers = buffers_of(field->values);
	self->buffer_count += field->buffers;
	for (int64_t i = 0; i < schema->n_children; i++)
		if (!add_fields(self, schema->children[i], levels - 1))
			return false;
	return true;
}

/* Lays out a schema's batches. Returns false if a type is not supported here, or if there is no memory (only then
 * `fields` is NULL). The caller calls ipc_layout_free() in any case. */
bool ipc_layout_of(struct ipc_layout *self, const struct ArrowSchema *schema)
{
	*self = (struct ipc_layout){0};
	self->fields = calloc(count_fields(schema, IPC_MOST_LEVELS), sizeof *self->fields);
	if (!self->fields || !add_fields(self, schema, IPC_MOST_LEVELS) || self->fields->values != VALUES_STRUCT)
		return false;
	self->buffer_count--; /* the batch counts as the first field, but has no validity buffer in a message */
	return true;
}

void ipc_layout_free(struct ipc_layout *self)
{
	free(self->fields);
}
